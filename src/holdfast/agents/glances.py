"""Glances: what a page shows of many runs at once. A few statements, however many runs there are."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.agents.glance_rows import OpenBelow, RunOfSession, TurnOfRun
from holdfast.agents.message_pages import with_blocks
from holdfast.agents.statements import CallsSql, GlancesSql, LookingSql
from holdfast.agents.values.runs import CallRecord, RunRecord, call_of, run_of
from holdfast.agents.values.sessions import Message
from holdfast.kernel.database import Transaction, reading

_MOST_CALLS = 1_000
_LONGEST = 100_000  # characters of JSON of a value that a page shows
_CUT = "[cut: this is too long for a page of many runs; the page of its run has it]"
_CUT_RUN = json.dumps({"text": _CUT})


class SaidRuns(NamedTuple):
    """Runs, and the last that was said in each, both by the run's id."""

    runs: Mapping[str, RunRecord]
    words: Mapping[str, Sequence[Message]]


@reading
async def said_in_runs(tx: Transaction, ids: Collection[str], most: int) -> SaidRuns:
    """These runs, and the last live messages of each, so many at most."""
    rows = await tx.many(LookingSql.short_runs, ids=sorted(set(ids)), most=_LONGEST, cut=_CUT_RUN) if ids else []
    places = [RunOfSession(row.id, row.session) for row in rows]
    found = await tx.many(GlancesSql.last_words, runs=places, skipped=most - 1) if rows else []
    words: dict[str, list[Message]] = {}
    for message in await with_blocks(tx, found, longest=_LONGEST, cut=_CUT):
        words.setdefault(message.run_id, []).append(message)
    return SaidRuns({row.id: run_of(row) for row in rows}, words)


@reading
async def calls_said_in(tx: Transaction, messages: Sequence[Message]) -> list[CallRecord]:
    """The calls that these messages ask for."""
    turns = {TurnOfRun(each.run_id, each.turn) for each in messages if each.role == "assistant"}
    if not turns:
        return []
    ids = [row.id for row in await tx.many(GlancesSql.calls_of_turns, turns=sorted(turns), limit=_MOST_CALLS)]
    return await calls_named(tx, ids)


@reading
async def calls_named(tx: Transaction, ids: Sequence[str]) -> list[CallRecord]:
    return [call_of(row) for row in await tx.many(CallsSql.find_calls, ids=list(ids))] if ids else []


@reading
async def open_below(tx: Transaction, ids: Collection[str]) -> OpenBelow:
    """How many of these runs, of the runs below them and of their calls have not ended: what a cancel ends."""
    found = await tx.one(GlancesSql.open_below, ids=sorted(set(ids))) if ids else None
    return OpenBelow(0, 0) if found is None else found
