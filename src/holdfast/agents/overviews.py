"""Glances: what a page shows of many runs at once. A few statements, however many runs there are."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

from holdfast.agents import queries
from holdfast.agents.definition import TOOL_KIND
from holdfast.agents.listing_rows import (
    AgentActivity,
    OpenCounts,
    OpenInquiries,
    RunOfSession,
    TurnLatencies,
    TurnOfRun,
)
from holdfast.agents.listings import with_blocks
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import RunRow
from holdfast.agents.statements import (
    ActivitySql,
    AgentsSql,
    CallsSql,
    MarkedRunsSql,
    OverviewsSql,
    RunsSql,
    RunTreesSql,
    SearchSql,
)
from holdfast.agents.values import CallRecord, Message, RunRecord, call_of, run_of
from holdfast.kernel import codec, watch
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queries import now as now_us
from holdfast.kernel.rows import Match
from holdfast.kernel.sql import Many
from holdfast.values import Quantiles, moment, quantiles

_MOST_CALLS = 1_000
_LONGEST = 100_000  # characters of JSON of a value that a page shows
_CUT = "[cut: this is too long for a page of many runs; the page of its run has it]"
_CUT_RUN = json.dumps({"text": _CUT})


class RunTexts(NamedTuple):
    """Runs, and the last that was said in each, both by the run's id."""

    runs: Mapping[str, RunRecord]
    words: Mapping[str, Sequence[Message]]


@reading
async def last_texts_of_runs(tx: Transaction, ids: Collection[str], most: int) -> RunTexts:
    """These runs, and the last live messages of each, so many at most."""
    rows = await tx.many(RunTreesSql.short_runs, ids=sorted(set(ids)), most=_LONGEST, cut=_CUT_RUN) if ids else []
    places = [RunOfSession(row.id, row.session) for row in rows]
    found = await tx.many(OverviewsSql.last_words, runs=places, skipped=most - 1) if rows else []
    words: dict[str, list[Message]] = {}
    for message in await with_blocks(tx, found, longest=_LONGEST, cut=_CUT):
        words.setdefault(message.run_id, []).append(message)
    return RunTexts({row.id: run_of(row) for row in rows}, words)


@reading
async def calls_of_messages(tx: Transaction, messages: Sequence[Message]) -> list[CallRecord]:
    """The calls that these messages ask for."""
    turns = {TurnOfRun(each.run_id, each.turn) for each in messages if each.role == "assistant"}
    if not turns:
        return []
    ids = [row.id for row in await tx.many(OverviewsSql.calls_of_turns, turns=sorted(turns), limit=_MOST_CALLS)]
    return await calls_named(tx, ids)


@reading
async def calls_named(tx: Transaction, ids: Sequence[str]) -> list[CallRecord]:
    return [call_of(row) for row in await tx.many(CallsSql.find_calls, ids=list(ids))] if ids else []


@reading
async def open_below(tx: Transaction, ids: Collection[str]) -> OpenCounts:
    """How many of these runs, of the runs below them and of their calls have not ended: what a cancel ends."""
    found = await tx.one(OverviewsSql.open_below, ids=sorted(set(ids))) if ids else None
    return OpenCounts(0, 0) if found is None else found


# Marked runs: those whose metadata contain something, among the newest; and which values the newest have.


MARKED_LOOK = 10_000
LOOK_FOR_VALUES = 1_000


class RunMarks(NamedTuple):
    """What is asked for. `metadata` is JSON that those of a run contain; None is any."""

    metadata: str
    tenant: str | None = None
    session: str | None = None
    agent: str | None = None
    state: str | None = None
    mode: str | None = None
    parent: str | None = None
    since: int = 0


class MarkedPage(NamedTuple):
    """`place` is where the look ended, None when nothing is left behind it."""

    rows: list[RunRow]
    place: tuple[int, str] | None
    looked: int


@reading
async def marked_page(
    tx: Transaction, marks: RunMarks, *, before: tuple[int, str] = (LAST, AFTER_ALL), limit: int = 100
) -> MarkedPage:
    """The newest first."""
    page: dict[str, Any] = {"before_at": before[0], "before": before[1], "since": marks.since}
    wanted = {**marks._asdict(), **page}
    if marks.tenant is None:
        del wanted["tenant"]
        found = await tx.many(MarkedRunsSql.marked, **wanted, look=MARKED_LOOK, limit=limit)
        end = await tx.one(MarkedRunsSql.end_of_marked, **page, skipped=MARKED_LOOK - 1)
    else:
        found = await tx.many(MarkedRunsSql.marked_of_tenant, **wanted, look=MARKED_LOOK, limit=limit)
        end = await tx.one(MarkedRunsSql.end_of_marked_of_tenant, tenant=marks.tenant, **page, skipped=MARKED_LOOK - 1)
    ids = [each.id for each in found]
    rows = {row.id: row for row in await tx.many(RunsSql.find_runs, ids=ids)} if ids else {}
    shown = [rows[id] for id in ids if id in rows]
    if len(found) == limit:
        return MarkedPage(shown, (found[-1].created_at, found[-1].id), len(found))
    return MarkedPage(
        shown, None if end is None else (end.created_at, end.id), len(found) if end is None else MARKED_LOOK
    )


@reading
async def mark_values(tx: Transaction, key: str, tenant: str | None, limit: int) -> list[tuple[Any, int]]:
    """The values that the newest runs have under a key of their metadata, each with how many of them have it."""
    page = {"key": key, "look": LOOK_FOR_VALUES, "limit": limit}
    if tenant is None:
        found = await tx.many(MarkedRunsSql.mark_values, **page)
    else:
        found = await tx.many(MarkedRunsSql.mark_values_of_tenant, tenant=tenant, **page)
    return [(codec.decode(row.value), row.n) for row in found]


# Search: what begins like a text. Ids of everything, keys of sessions, names of agents; every look is bounded.


SEARCH_LOOK = 1_000
_BY_ID: Mapping[str, Many[Match]] = {
    "run": SearchSql.runs_from,
    "session": SearchSql.sessions_from,
    "call": SearchSql.calls_from,
    "inquiry": SearchSql.inquiries_from,
    "agent": SearchSql.agents_from,
}
_SHAPE = "00000000-0000-0000-0000-000000000000"
_HEX = re.compile(r"[0-9a-f-]{4,36}")


def ids_from(text: str) -> tuple[str, str] | None:
    """The first and the last id that begins so; None when no id does."""
    text = text.lower()
    if not _HEX.fullmatch(text) or any((a == "-") != (b == "-") for a, b in zip(text, _SHAPE, strict=False)):
        return None
    rest = _SHAPE[len(text) :]
    return text + rest, text + rest.replace("0", "f")


@reading
async def search_agents(tx: Transaction, text: str, tenant: str | None, limit: int) -> list[tuple[str, Match]]:
    """What it found, each with its noun."""
    given = {"tenant": tenant, "limit": limit}
    found: list[tuple[str, Match]] = []
    if (ids := ids_from(text)) is not None:
        for noun, statement in _BY_ID.items():
            rows = await tx.many(statement, low=ids[0], high=ids[1], look=SEARCH_LOOK, **given)
            found += [(noun, row) for row in rows]
    keyed = await tx.many(SearchSql.sessions_keyed, low=text, high=text + "\U0010ffff", look=SEARCH_LOOK, **given)
    found += [("session", row) for row in keyed]
    found += [("agent", row) for row in await tx.many(SearchSql.agents_called, text=text, **given)]
    return found


# The tools of stored agents: what models are shown, which agents have each, and who serves it.


_MOST_AGENTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """A tool as the newest versions of stored agents have it. `agents` are the names of those that offer it."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: str
    queue: str
    requires: list[str]
    approve: bool
    agents: list[str]


@reading
async def list_tools(tx: Transaction, tenant: str | None) -> list[ToolRecord]:
    """The tools of a tenant's agents, or of all, by name; of the first thousand agents."""
    agents = {row.id: row.name for row in await queries.list_agents(tx, tenant=tenant, limit=_MOST_AGENTS)}
    versions = await tx.many(AgentsSql.current_definitions, names=sorted(set(agents.values())))
    found: dict[str, ToolRecord] = {}
    for version in sorted(versions, key=lambda each: each.created_at, reverse=True):
        if version.agent in agents:
            for tool in json.loads(version.definition).get("tools", ()):
                known = found.setdefault(str(tool["name"]), _record(tool))
                known.agents.append(agents[version.agent])
    for each in found.values():
        each.agents.sort()
    return [found[name] for name in sorted(found)]


def _record(tool: dict[str, Any]) -> ToolRecord:
    return ToolRecord(
        name=str(tool["name"]),
        description=tool.get("description", ""),
        schema=tool.get("schema", {}),
        effect=tool.get("effect", "idempotent"),
        queue=tool.get("queue", "default"),
        requires=list(tool.get("requires", ())),
        approve=bool(tool.get("approve", False)),
        agents=[],
    )


async def workers_of(tx: Transaction, tool: ToolRecord, absent: Collection[int] = ()) -> list[str]:
    """The live workers that can run it."""
    return await queries.servers_of(tx, [TOOL_KIND + tool.name, *tool.requires], absent)


# What agents do now and did in the last minute, for who watches. Every question is bounded.


CAP = 10_000  # rows that each part of a question reads
ACTIVITY_LOOK = 1_000  # turns whose times are compared


@reading
async def agent_activity(tx: Transaction) -> list[AgentActivity]:
    """Of every agent with an open run, or one that did something in the last minute; the busiest first."""
    return await tx.many(ActivitySql.agent_activity, cap=CAP)


@reading
async def open_inquiries(tx: Transaction) -> OpenInquiries:
    return await tx.one(ActivitySql.waiting_people, cap=CAP) or OpenInquiries()


@reading
async def turn_latencies(tx: Transaction) -> list[TurnLatencies]:
    """How long the last turns of each model took, of those that ended in the last minute."""
    return await tx.many(ActivitySql.turn_latencies, look=ACTIVITY_LOOK)


# What the fleet does now, as those see it who watch. Every question is bounded.


_GRACE_US = 5_000_000  # a lease that ended longer ago should have been noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentNow:
    """An agent: its open runs, those that wait for a person, and what it did in the last minute."""

    SHOWN: ClassVar = ("cost",)

    agent: str
    open: int
    asking: int
    ended: int
    failed: int
    turns: int
    cost_nano: int
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNow:
    """`oldest_pending` is for how many seconds the oldest job of each queue has waited for a worker, `turn_seconds` how
    long the turns of each model took in the last minute, by quantile."""

    at: datetime
    agents: list[AgentNow]
    inquiries: int
    lapsed: int
    oldest_pending: dict[str, float]
    turn_seconds: dict[str, Quantiles]


@reading
async def fleet_now(tx: Transaction) -> FleetNow:
    now = await now_us(tx)
    oldest: dict[str, float] = {}
    for each in await watch.backlogs(tx):
        if each.oldest_at is not None:
            oldest[each.queue] = max(oldest.get(each.queue, 0.0), (now - each.oldest_at) / 1e6)
    return FleetNow(
        at=moment(now),
        agents=[AgentNow(**each._asdict()) for each in await agent_activity(tx)],
        inquiries=(await open_inquiries(tx)).n,
        lapsed=(await watch.symptoms(tx, grace_us=_GRACE_US)).lapsed,
        oldest_pending=oldest,
        turn_seconds={row.model: quantiles(*row[1:]) for row in await turn_latencies(tx)},
    )
