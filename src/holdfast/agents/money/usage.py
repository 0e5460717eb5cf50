"""What was used: what the tally says of whole hours and days, and the turns that it does not have yet.

So the turns of sessions that are gone stay counted, and a question about a month reads no more than an hour of turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.agents.money.money_rows import UsedRow
from holdfast.agents.money.statements import BudgetsSql
from holdfast.agents.states import TurnState
from holdfast.agents.tallies import COMPACTIONS, TURNS
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queries import now
from holdfast.kernel.tally import DAY, HOUR, KEPT, find_mark
from holdfast.kernel.tally_rows import SeriesPoint
from holdfast.kernel.tally_series import SeriesQuery, read_series

_MOST = 10_000_000
_TRIES = 5
_EVER = 2**62
_COLUMNS: Mapping[str, str] = {"agent": "source", "model": "kind", "mode": "mode", "tenant": "tenant"}


class TimeSpan(NamedTuple):
    since: int
    until: int


class Parts(NamedTuple):
    """Which hours and days of the tally, and which turns."""

    tallied: Sequence[tuple[str, TimeSpan]]
    read: Sequence[TimeSpan]


def parts_of(asked: TimeSpan, mark: int, now_us: int) -> Parts:
    """What is counted up to the mark is read from the tally, and what was removed since then too."""
    behind = asked.until > mark
    low = -(-asked.since // HOUR) * HOUR
    if low < now_us - KEPT["hour"]:
        low = -(-asked.since // DAY) * DAY
    high = -(-asked.until // HOUR) * HOUR if behind else asked.until // HOUR * HOUR
    if low >= high:
        return Parts([], [asked])
    first, last = -(-low // DAY) * DAY, high // DAY * DAY
    whole = [("hour", TimeSpan(low, first)), ("day", TimeSpan(first, last)), ("hour", TimeSpan(last, high))]
    rest = TimeSpan(max(mark + 1, low), asked.until) if behind else TimeSpan(high, asked.until)
    return Parts(whole if first < last else [("hour", TimeSpan(low, high))], [TimeSpan(asked.since, low), rest])


@reading
async def usage_of_all(tx: Transaction, by: Sequence[str], asked: TimeSpan, tenant: str | None) -> list[UsedRow]:
    """Grouped by these parts. A chore that counts meanwhile moves the mark: then it is read again."""
    mark = await find_mark(tx, TURNS)
    rows = await _read(tx, by, asked, tenant, mark)
    for _ in range(_TRIES):
        before, mark = mark, await find_mark(tx, TURNS)
        if before == mark:
            break
        rows = await _read(tx, by, asked, tenant, mark)
    return _joined(rows)


async def _read(tx: Transaction, by: Sequence[str], asked: TimeSpan, tenant: str | None, mark: int) -> list[UsedRow]:
    now_us = await now(tx)
    rows: list[UsedRow] = []
    parts = parts_of(asked, mark, now_us)
    for subject, state, tallied in (
        (TURNS, TurnState.COMPLETED.value, parts.tallied),
        (COMPACTIONS, None, parts_of(asked, -1, now_us).tallied),
    ):
        for grain, span in tallied:
            columns = [_COLUMNS[part] for part in by if part in _COLUMNS]
            step = DAY if "day" in by else _EVER
            wanted = SeriesQuery(subject, grain, *span, step, columns, tenant, state=state)
            found = await read_series(tx, wanted, limit=_MOST, cap=_MOST)
            rows += [_of(row, by, tenant, turns=subject == TURNS) for row in found]
    flags = {f"by_{part}": int(part in by) for part in ("tenant", "agent", "model", "mode", "day")}
    for span in parts.read:
        rows += await tx.many(BudgetsSql.usage_of_turns, **flags, **span._asdict(), tenant=tenant)
    return rows + await tx.many(BudgetsSql.usage_of_compactions, **flags, **asked._asdict(), tenant=tenant)


def _of(row: SeriesPoint, by: Sequence[str], tenant: str | None, *, turns: bool) -> UsedRow:
    whose = (tenant or row.tenant) if "tenant" in by else ""
    number = row.number if turns else 0
    return UsedRow(whose, row.source, row.kind, row.mode, row.at // DAY, number, *row[7:])


def _joined(rows: Sequence[UsedRow]) -> list[UsedRow]:
    """Each group once, the last day and what cost most first."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        numbers: Sequence[int] = row[5:]
        sums[row[:5]] = [a + b for a, b in zip(sums.get(row[:5], [0] * len(numbers)), numbers, strict=True)]
    found = [UsedRow._make((*key, *numbers)) for key, numbers in sums.items()]
    return sorted(found, key=lambda row: (-row.day, -row.cost_nano, *row[:4]))
