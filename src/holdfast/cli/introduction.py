"""What a worker says of itself: what it is and serves when it starts, and what it has done when it stops.

These lines show at every log level. They are records of the log like the others, so they become JSON with the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.agents.definition import AGENT_KIND, TOOL_KIND
from holdfast.agents.keys import agents_lacking
from holdfast.agents.system_jobs import BATCHED
from holdfast.app import Holdfast, core_of
from holdfast.cli.logs import LINES
from holdfast.cli.target import database_label
from holdfast.errors import VERSION
from holdfast.kernel.drivers import dialect_of
from holdfast.kernel.migrate import code_version
from holdfast.text import named, plural, shown
from holdfast.workers.role import Role
from holdfast.workers.telemetry import AttemptTally

log = logging.getLogger("holdfast.cli.worker")

_GROUPS = {BATCHED.name: "runs in batch mode"}  # of slots, where the name alone would not do


class ProcessNumber(NamedTuple):
    """Which of several processes a worker is."""

    number: int = 1
    total: int = 1


def always_show() -> None:
    """Whatever level is chosen for the others, these lines show."""
    log.setLevel(logging.INFO)


def say(line: str) -> None:
    """One of these lines."""
    log.info(line)


def introduce(app: Holdfast, role: Role, part: ProcessNumber) -> None:
    """A worker has started: say what it serves. Of several, the first says it for all."""
    withheld = core_of(app).registry.withheld()
    if part.number == 1:
        _say_what_it_serves(app, role, part, withheld)
        core_of(app).log_warnings()
    core_of(app).keys.reported(withheld)


def say_ready(part: ProcessNumber, worker: str) -> None:
    extra = {"ready": True, "part": part.number, "worker": worker}
    log.info("ready%s: worker %s", which(part), worker, extra=extra)


def _say_what_it_serves(app: Holdfast, role: Role, part: ProcessNumber, withheld: Mapping[str, str]) -> None:
    settings, registry = app.settings, core_of(app).registry
    kinds = sorted(kind for kind in registry.definitions if role.takes(kind) and kind not in withheld)
    lacking = {kind: lack for kind, lack in withheld.items() if role.takes(kind)}
    sorts = {layer.name: layer.kinds for layer in registry.layers}
    jobs = [kind for kind in kinds if not kind.startswith(tuple(begin for each in sorts.values() for begin in each))]
    agents, tools = _of(kinds, AGENT_KIND), _of(kinds, TOOL_KIND)
    slots = {group.name: group.limit(settings) for group in registry.groups if group.name in registry.served_slots}
    where = database_label(settings)
    schema = code_version(dialect_of(settings.url))
    schedules = [schedule.name for schedule in registry.schedules]
    fields = {
        "version": VERSION,
        "database": where,
        "schema": schema,
        "queues": None if role.queues is None else list(role.queues),
        "jobs": jobs,
        "agents": agents,
        "tools": tools,
        "schedules": schedules,
        "slots": slots,
        "processes": part.total,
        "without_key": lacking,
    }
    served = (
        ("queues", "all" if role.queues is None else named(role.queues)),
        ("jobs", named(jobs)),
        ("agents", named(agents)),
        ("tools", named(tools)),
        ("schedules", named(schedules)),
        ("slots", _slots(slots, part)),
        *(("left out", f"{named(names)}: {shown(lack)}") for lack, names in agents_lacking(lacking).items()),
    )
    lines = [f"{title:10} {text}" for title, text in served if text]
    log.info("holdfast %s, %s, schema %d", VERSION, where, schema, extra={**fields, LINES: lines})


def say_goodbye(tally: AttemptTally, part: ProcessNumber) -> None:
    """After a clean stop."""
    seconds = tally.stopping
    attempts = plural(tally.finished, "attempt")
    fields = {"finished": tally.finished, "handed_back": tally.handed_back, "lost": tally.lost, "part": part.number}
    words = f"stopped{which(part)}: {attempts} finished, {tally.handed_back:,} handed back"
    lost = f", {tally.lost:,} lost" if tally.lost else ""
    log.info("%s%s; stopping took %.1f s", words, lost, seconds, extra={**fields, "seconds": round(seconds, 3)})


def _of(kinds: Sequence[str], sort: str) -> list[str]:
    return [kind.removeprefix(sort) for kind in kinds if kind.startswith(sort)]


def _slots(slots: dict[str, int], part: ProcessNumber) -> str:
    each = ", ".join(f"{limit} for {_GROUPS.get(name, name)}" for name, limit in slots.items())
    return f"{each}, in each of {plural(part.total, 'process', 'processes')}" if part.total > 1 else each


def which(part: ProcessNumber) -> str:
    return f" (process {part.number} of {part.total})" if part.total > 1 else ""
