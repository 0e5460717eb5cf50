"""What agents did in a lab, as a test asks for it: which tools they called, and what they bought beyond what they kept.

The store knows what was recorded; the witness of the lab's model knows what was bought. Neither has seen the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.agents import listings, queries
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import RunRow
from holdfast.agents.values import Turn
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.testing.enqueued import read_jobs

_PAGE = 1_000
_CALL = re.compile(r"(?P<run>.+)([/_])(?P<turn>\d+)\2[^/_]+")


class Rebought(NamedTuple):
    """A turn whose model was asked more often than can be explained: an answer was recorded and bought again."""

    run: str
    turn: int
    bought: int
    recorded: int
    unknown: int


async def calls_of(database: Database, tool: str) -> list[dict[str, Any]]:
    """What a tool was called with, in the order in which the calls were accepted."""
    order: dict[str, int] = {row.id: row.seq for row in await read_jobs(database)}
    found = [
        call
        for run in await every_run(database)
        for call in await database.transact(queries.list_calls, run.id)
        if call.name == tool and call.id in order
    ]
    found.sort(key=lambda call: order[call.id])
    return [codec.decode(call.input) for call in found]


async def rebought(database: Database, witness: Iterable[dict[str, Any]]) -> list[Rebought]:
    """Turns that were bought more often than recorded and unknown together say."""
    bought = purchases(witness)
    found: list[Rebought] = []
    for run in await every_run(database):
        for turn in await database.transact(queries.list_turns, run.id):
            times, recorded = bought[run.id, turn.number], int(turn.state == "completed")
            if times > recorded + turn.unknown + _open(turn):
                found.append(Rebought(run.id, turn.number, times, recorded, turn.unknown))
    return found


def purchases(witness: Iterable[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """How often each turn was sent to its model, without what the model refused before it did any work."""
    counts: Counter[tuple[str, int]] = Counter()
    for line in witness:
        key = turn_of(line["call"])
        if key is None:  # a batch as a whole, or a summary: no turn of a run
            continue
        if line["event"] in ("sent", "billed"):
            counts[key] += 1
        elif line.get("rejected"):
            counts[key] -= 1
    return counts


def turn_of(call: str) -> tuple[str, int] | None:
    """The run and the turn that a call is for: `<run>/<turn>/<attempt>`, or in a batch `<run>_<turn>_<attempt>`."""
    found = _CALL.fullmatch(call)
    return None if found is None else (found["run"], int(found["turn"]))


def _open(turn: Turn) -> int:
    """1 while a call may be under way, or its worker was killed and no worker has recorded that yet.

    An answer in a batch is bought when the batch is, and recorded when it has ended.
    """
    return int(turn.state in ("calling", "batched"))


async def every_run(database: Database) -> list[RunRow]:
    """Every run in the store, the newest first."""
    rows: list[RunRow] = []
    before = (LAST, AFTER_ALL)
    while page := await database.transact(listings.list_runs, before=before, limit=_PAGE):
        rows += page
        before = (page[-1].created_at, page[-1].id)
    return rows
