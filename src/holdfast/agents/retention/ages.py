"""Ages: for how long what runs leave behind is kept, by kind; by the settings, or by what is stored for one tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Literal, NamedTuple

from holdfast import durations
from holdfast.agents.retention.records import AgesRow, PruningSql
from holdfast.agents.rows import EventRow
from holdfast.durations import Duration, microseconds
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.settings import Settings

Kind = Literal["deltas", "events", "inquiries", "turns", "sessions"]
KINDS: tuple[Kind, ...] = ("deltas", "events", "inquiries", "turns", "sessions")


class Ages(NamedTuple):
    """For how long each kind is kept after the end of a run; nothing: for ever.

    `deltas` are the pieces in which an answer was streamed, `events` all events of a run, `inquiries` what people
    decided, `turns` what a provider said beside its answers, `sessions` whole conversations after their last run.
    """

    deltas: timedelta
    events: timedelta
    inquiries: timedelta
    turns: timedelta
    sessions: timedelta

    def us(self, kind: Kind) -> int:
        return microseconds(getattr(self, kind))


def default_ages(settings: Settings) -> Ages:
    return Ages(
        settings.delta_retention,
        settings.event_retention,
        settings.inquiry_retention,
        settings.turn_retention,
        settings.session_retention,
    )


def own_ages(row: AgesRow, settings: Settings) -> Ages:
    """The ages of a tenant; what it leaves open the settings say."""
    everybody = default_ages(settings)
    own = {kind: us for kind in KINDS if (us := getattr(row, f"{kind}_us")) is not None}
    return everybody._replace(**{kind: timedelta(microseconds=us) for kind, us in own.items()})


def check_ages(given: Mapping[str, Duration | None]) -> dict[str, int | None]:
    """Ages as they are stored."""
    return {f"{kind}_us": None if age is None else microseconds(durations.duration(age)) for kind, age in given.items()}


@reading
async def find_ages(tx: Transaction, tenant: str, settings: Settings) -> Ages:
    row = await tx.one(PruningSql.find_ages, tenant=tenant)
    return default_ages(settings) if row is None else own_ages(row, settings)


async def set_ages(tx: Transaction, tenant: str, given: Mapping[str, int | None]) -> None:
    """Store the ages of a tenant; None is what it has so far."""
    row = await tx.one(PruningSql.find_ages, tenant=tenant) or AgesRow(tenant, *[None] * len(KINDS))
    chosen = {name: us for name, us in given.items() if us is not None}
    await tx.run(PruningSql.set_ages, **{**row._asdict(), **chosen})


async def forget_ages(tx: Transaction, tenant: str) -> None:
    """From now on the settings say how long a tenant's things are kept."""
    if await tx.one(PruningSql.find_ages, tenant=tenant) is None:
        return
    await tx.run(PruningSql.delete_ages, tenant=tenant)
    await tx.run(PruningSql.delete_marks, tenant=tenant)
    await tx.run(PruningSql.begin_anew)


# Gaps: a reader of pruned events gets a notice, and never just skips them.
#
# Events of a run are numbered without gap, so a number that is missing was pruned. The public topics have no such
# numbers: for them it is stored how far pruning came.


PRUNED = "events_pruned"
_TOPICS = "topics"

Place = tuple[int, int, int]
"""The epoch, the transaction and the place of an event of a public topic."""


def missing(run: str, first: int, last: int, at: int = 0) -> EventRow:
    """What stands for events that were pruned; its number is that of the last of them."""
    data = codec.encode({"first": first, "last": last}, what="an event", cap=1_000)
    return EventRow(run, last, at, PRUNED, data)


def with_gaps(run: str, rows: Sequence[EventRow], after: int, last: int | None) -> Iterator[EventRow]:
    """The events of a run after one number, with a word for those that are missing; `last` of a run that has ended."""
    for row in rows:
        if row.seq > after + 1:
            yield missing(run, after + 1, row.seq - 1, row.at)
        yield row
        after = row.seq
    if last is not None and after < last:
        yield missing(run, after + 1, last)


async def raise_horizon(tx: Transaction, gone: Sequence[Place]) -> None:
    """Note that events of public topics were removed."""
    if not gone:
        return
    known = await find_horizon(tx)
    furthest = max(gone)
    if furthest > known:
        await tx.run(PruningSql.set_mark, kind=_TOPICS, tenant="", at=0, id=".".join(map(str, furthest)))


@reading
async def find_horizon(tx: Transaction) -> Place:
    """Up to where events of public topics may be missing."""
    mark = await tx.one(PruningSql.find_mark, kind=_TOPICS, tenant="")
    if mark is None:
        return -1, 0, 0
    epoch, number, pos = map(int, mark.id.split("."))
    return epoch, number, pos
