"""What a worker says of itself: what it is and serves when it starts, what it waits for when it stops, and what it has
done then.

These lines show at every log level. They are records of the log like the others, so they become JSON with the others.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.agents.definition import AGENT_KIND, TOOL_KIND
from holdfast.agents.keys import agents_lacking
from holdfast.agents.slots import BATCHED
from holdfast.app import Holdfast, core_of
from holdfast.cli.logs import LINES
from holdfast.cli.target import database_label
from holdfast.distribution import VERSION
from holdfast.kernel.drivers import dialect_of
from holdfast.kernel.migrate import code_version
from holdfast.shown_text import plural, shown
from holdfast.workers.role import Role
from holdfast.workers.telemetry import AttemptTally

log = logging.getLogger("holdfast.cli.worker")

_GROUPS = {BATCHED.name: "runs in batch mode"}  # of slots, where the name alone would not do
_NAMED = 12  # names of one list; more are counted
_JOBS = 3  # jobs that a process names when it stops
_REPEAT = 5.0  # seconds after which a process that stops says again what it waits for


class ProcessNumber(NamedTuple):
    """Which of several processes a worker is."""

    number: int = 1
    total: int = 1


def always_show() -> None:
    """Whatever level is chosen for the others, these lines show."""
    log.setLevel(logging.INFO)


def introduce(app: Holdfast, role: Role, part: ProcessNumber) -> None:
    """A worker has started: say what it serves. Of several, the first says it for all."""
    withheld = core_of(app).registry.withheld()
    if part.number == 1:
        _say_what_it_serves(app, role, part, withheld)
        core_of(app).tell_doubts()
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
        ("queues", "all" if role.queues is None else listed(role.queues)),
        ("jobs", listed(jobs)),
        ("agents", listed(agents)),
        ("tools", listed(tools)),
        ("schedules", listed(schedules)),
        ("slots", _slots(slots, part)),
        *(("left out", f"{listed(names)}: {shown(lack)}") for lack, names in agents_lacking(lacking).items()),
    )
    lines = [f"{title:10} {text}" for title, text in served if text]
    log.info("holdfast %s, %s, schema %d", VERSION, where, schema, extra={**fields, LINES: lines})


class Awaited(NamedTuple):
    """What a process waits for when it stops; nothing if `number` is 0."""

    number: int
    words: str  # "2 jobs (mail.send 018f…, mail.send 0190…)"
    second: str  # what a second signal is for: "stop at once and hand them back"
    given_up: str  # what happens without more waiting: "2 jobs (…) are handed back"


def jobs_awaited(names: Sequence[str]) -> Awaited:
    """Jobs that a worker runs, each named by its kind and its id."""
    words = f"{plural(len(names), 'job')} ({listed(names, _JOBS)})"
    them, are = ("it", "is") if len(names) == 1 else ("them", "are")
    return Awaited(len(names), words, f"stop at once and hand {them} back", f"{words} {are} handed back")


def workers_awaited(count: int) -> Awaited:
    """Worker processes, which say themselves what they run."""
    words = plural(count, "worker")
    hands = "hands back what it runs" if count == 1 else "hand back what they run"
    return Awaited(count, words, "stop at once and hand back what runs", f"{words} {hands}")


class StopNotice:
    """What a process says while it stops: what it waits for, how long at most, and what a second signal does.

    `awaited` is asked each time. With `repeats` it says every few seconds what it still waits for.
    """

    def __init__(
        self,
        awaited: Callable[[], Awaited],
        *,
        which: str = "",
        repeats: bool = True,
        say: Callable[[str], object] = log.info,
    ) -> None:
        self._awaited = awaited
        self._which = which
        self._repeats = repeats
        self._say = say
        self._waiting: asyncio.Task[None] | None = None

    def begin(self, number: int | None, within: float) -> None:
        """At the first signal; None where a parent hears the signals, and says what a second one does."""
        awaited = self._awaited()
        if not awaited.number:
            return
        again = "" if number is None else f"; {_again(number)} to {awaited.second}"
        self._say(f"stopping{self._which}: waiting up to {within:g} s for {awaited.words}{again}")
        if self._repeats:
            self._waiting = asyncio.create_task(self._wait(within), name="what this process waits for")

    def hurry(self) -> None:
        """At the second signal."""
        if self._waiting is not None:
            self._waiting.cancel()
        if (awaited := self._awaited()).number:
            self._say(f"stopping{self._which} at once: {awaited.given_up}")

    async def _wait(self, left: float) -> None:
        while left > 0:
            await asyncio.sleep(min(left, _REPEAT))
            left -= _REPEAT
            awaited = self._awaited()
            if not awaited.number:
                return
            if left > 0:
                self._say(f"stopping{self._which}: still waiting for {awaited.words}, up to {left:g} s more")
            else:
                self._say(f"stopping{self._which}: the time is over; {awaited.given_up}")


def _again(number: int) -> str:
    return "press Ctrl-C again" if number == signal.SIGINT else f"send {signal.Signals(number).name} again"


def say_goodbye(tally: AttemptTally, part: ProcessNumber) -> None:
    """After a clean stop."""
    seconds = tally.stopping
    attempts = plural(tally.finished, "attempt")
    fields = {"finished": tally.finished, "handed_back": tally.handed_back, "lost": tally.lost, "part": part.number}
    words = f"stopped{which(part)}: {attempts} finished, {tally.handed_back:,} handed back"
    lost = f", {tally.lost:,} lost" if tally.lost else ""
    log.info("%s%s; stopping took %.1f s", words, lost, seconds, extra={**fields, "seconds": round(seconds, 3)})


def listed(names: Sequence[str], most: int = _NAMED) -> str:
    """Names for people: the first ones, and how many more there are."""
    some = ", ".join(shown(name) for name in names[:most])
    return f"{some} and {len(names) - most} more" if len(names) > most else some


def _of(kinds: Sequence[str], sort: str) -> list[str]:
    return [kind.removeprefix(sort) for kind in kinds if kind.startswith(sort)]


def _slots(slots: dict[str, int], part: ProcessNumber) -> str:
    each = ", ".join(f"{limit} for {_GROUPS.get(name, name)}" for name, limit in slots.items())
    return f"{each}, in each of {plural(part.total, 'process', 'processes')}" if part.total > 1 else each


def which(part: ProcessNumber) -> str:
    return f" (process {part.number} of {part.total})" if part.total > 1 else ""
