"""What the tally says of an erased tenant: the counts stay, the names go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.kernel.database import Transaction
from holdfast.kernel.queries import now
from holdfast.kernel.statements import TallySql
from holdfast.kernel.tally import AGAIN, KEPT, put
from holdfast.kernel.tally_rows import Tally, TallyTime

ERASED = "(erased)"
_PAGE = 200


async def make_nameless(tx: Transaction, subject: str, tenant: str, *, page: int = _PAGE) -> bool:
    """Leave no source in the counts of one tenant, and none that is there for it alone; True when there are more."""
    more = False
    for grain in ("tenant_hour", "tenant_day"):
        given = {"subject": subject, "grain": grain, "tenant": tenant, "erased": ERASED, "limit": page}
        tallies = await tx.many(TallySql.tenants_tallies, **given)
        times = await tx.many(TallySql.tenants_times, **given)
        await _move(tx, tallies, times)
        await _move(
            tx,
            [row._replace(grain=grain.removeprefix("tenant_"), tenant="") for row in tallies],
            [row._replace(grain=grain.removeprefix("tenant_"), tenant="") for row in times],
        )
        more = more or max(len(tallies), len(times)) == page
        if tallies:
            sources = sorted({row.source for row in tallies})
            await tx.run(
                TallySql.forget_minutes, subject=subject, sources=sources, since=await now(tx) - KEPT["minute"]
            )
    return more


async def forget_again(tx: Transaction, subject: str, tenant: str) -> None:
    """Forget what was counted again of hours that are not complete: it has names, and the rows are gone."""
    await tx.run(TallySql.forget_again_of, again=AGAIN + subject, tenant=tenant)


async def _move(tx: Transaction, tallies: Sequence[Tally], times: Sequence[TallyTime]) -> None:
    """Count this under no name, and no more under its own."""
    await put(tx, [_less(row) for row in tallies], [row._replace(number=-row.number) for row in times])
    await put(tx, _joined(tallies), _joined_times(times))
    for statement, rows in ((TallySql.forget_empty_tallies, tallies), (TallySql.forget_empty_times, times)):
        if rows:
            first, last = rows[0], rows[-1]
            where = {"subject": first.subject, "grain": first.grain, "tenant": first.tenant}
            await tx.run(statement, **where, since=first.at, until=last.at)


def _less(row: Tally) -> Tally:
    return Tally._make((*row[:8], *(-value for value in _numbers(row))))


def _joined(rows: Sequence[Tally]) -> list[Tally]:
    """Without their sources, each key once."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        key, numbers = row._replace(source=ERASED)[:8], _numbers(row)
        sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(numbers)), numbers, strict=True)]
    return [Tally._make((*key, *numbers)) for key, numbers in sums.items()]


def _numbers(row: Tally) -> Sequence[int]:
    return row[8:]


def _joined_times(rows: Sequence[TallyTime]) -> list[TallyTime]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sums[row._replace(source=ERASED)[:10]] += row.number
    return [TallyTime._make((*key, number)) for key, number in sums.items()]
