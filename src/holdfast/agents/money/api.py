"""Money as the app offers it: budgets, prices, and what was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Literal, NamedTuple

from holdfast import durations, validation
from holdfast.agents.api.session import Session
from holdfast.agents.core import AgentsCore, AppPart
from holdfast.agents.definition import nano_of
from holdfast.agents.money.budgets import DAY_US
from holdfast.agents.money.records import BudgetRow, BudgetsSql, BudgetState, UsedRow
from holdfast.agents.queries import COMPACTIONS, TURNS, find_session
from holdfast.agents.states import TurnState
from holdfast.durations import Duration
from holdfast.errors import BadSetting, NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import derived_id
from holdfast.kernel.queries import now
from holdfast.kernel.tally import DAY, HOUR, KEPT, SeriesQuery, find_mark, read_series
from holdfast.kernel.tally_rows import SeriesPoint
from holdfast.models.prices import Price
from holdfast.observe import changing
from holdfast.values import Page, part_of

# What was used: what the tally says of whole hours and days, and the turns that it does not have yet.
#
# So the turns of sessions that are gone stay counted, and a question about a month reads no more than an hour of
# turns.


_MOST = 10_000_000
_TRIES = 5
_EVER = 2**62
_COLUMNS: Mapping[str, str] = {"agent": "source", "model": "kind", "mode": "mode", "tenant": "tenant"}


class TimeSpan(NamedTuple):
    since: int
    until: int


class TimeParts(NamedTuple):
    """Which hours and days of the tally, and which turns."""

    tallied: Sequence[tuple[str, TimeSpan]]
    read: Sequence[TimeSpan]


def parts_of(asked: TimeSpan, mark: int, now_us: int) -> TimeParts:
    """What is counted up to the mark is read from the tally, and what was removed since then too."""
    behind = asked.until > mark
    low = -(-asked.since // HOUR) * HOUR
    if low < now_us - KEPT["hour"]:
        low = -(-asked.since // DAY) * DAY
    high = -(-asked.until // HOUR) * HOUR if behind else asked.until // HOUR * HOUR
    if low >= high:
        return TimeParts([], [asked])
    first, last = -(-low // DAY) * DAY, high // DAY * DAY
    whole = [("hour", TimeSpan(low, first)), ("day", TimeSpan(first, last)), ("hour", TimeSpan(last, high))]
    rest = TimeSpan(max(mark + 1, low), asked.until) if behind else TimeSpan(high, asked.until)
    return TimeParts(whole if first < last else [("hour", TimeSpan(low, high))], [TimeSpan(asked.since, low), rest])


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


Policy = Literal["end", "ask", "wait"]
Part = Literal["tenant", "agent", "model", "mode", "day"]

_PARTS: tuple[Part, ...] = ("tenant", "agent", "model", "mode", "day")
_DEFAULT = ("session", "each tenant")  # how the default of tenants is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent, and what has been spent.

    `scope` is "session", "tenant", "everybody" or "each_tenant", and `subject` is whose budget it is. The default
    budget of tenants has the scope "each_tenant" and no subject, and nothing is spent of it. What a tenant has spent
    of it is listed beside it, with the same id and the tenant as `subject`.
    """

    SHOWN: ClassVar = ("left",)

    id: str
    scope: str
    subject: str
    per: timedelta | None
    cost: Decimal
    policy: str
    spent: Decimal
    reserved: Decimal

    @property
    def left(self) -> Decimal:
        return self.cost - self.spent - self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What was used; the parts that were not asked for are empty. `cost` is in USD."""

    SHOWN: ClassVar = ("cost",)

    tenant: str
    agent: str
    model: str
    mode: str
    day: date | None
    turns: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000


class BudgetsList(AppPart):
    """`hf.budgets`: `await hf.budgets.set("20.00", tenant="acme", per="1d")`."""

    def __init__(self, app: AgentsCore, tenant: str | None = None) -> None:
        self._app = app
        self._tenant = tenant  # None: of everybody

    @changing("budgets set")
    async def set(
        self,
        cost: str | Decimal,
        *,
        tenant: str | None = None,
        session: Any = None,
        each_tenant: bool = False,
        per: Duration | None = None,
        policy: Policy = "end",
    ) -> Budget:
        """What a tenant, a session (with `tenant`, that tenant's) or, without either, everybody may spend.

        With `each_tenant`, it is the budget of each tenant that has none of its own for the same period.

        It holds for ever, or for each `per`: "1d" are UTC days.

        A call that does not fit any more ends its run ("end"), lets it wait for a person ("ask"), or for the next
        period ("wait"). Setting it again changes the amount and the policy; what is spent stays spent.
        """
        if not isinstance(cost, str | Decimal):
            raise BadSetting(f'money is written as text, "{cost}", never as a float.')
        if policy not in ("end", "ask", "wait"):
            raise BadSetting(f'policy must be "end", "ask" or "wait"; got {policy!r}.')
        tenant = tenant if self._tenant is None else self._tenant
        if tenant is not None:
            codec.check_tenant(tenant)
        if each_tenant and (tenant is not None or session is not None):
            raise UsageError("each_tenant is for all tenants: leave out the tenant and the session.")
        subject = (tenant or "") if session is None else await self._session(session, tenant)
        scope = "session" if session is not None else "everybody" if tenant is None else "tenant"
        if each_tenant:
            scope, subject = _DEFAULT
        period_us = 0 if per is None else durations.microseconds(per)
        if per is not None and not period_us:
            raise BadSetting('per must be longer than 0, such as "1d"; without it the budget never resets.')
        if policy == "wait" and not period_us:
            raise BadSetting('policy="wait" waits for the next period: add per="1d".')
        id = derived_id("budget", scope, subject, period_us)
        row = BudgetRow(id, scope, subject, period_us, nano_of(str(cost)), policy)
        await self._transact(set_budget, row)
        return next(each for each in await self._set() if each.id == row.id)

    async def _session(self, session: Any, tenant: str | None) -> str:
        if isinstance(session, Session):
            return (await session).id
        if not isinstance(session, str):
            raise UsageError(validation.expected("session", "a Session, a session id or a key", session))
        return (await self._transact(find_session, session, tenant or None)).id

    async def used(
        self,
        *by: Part,
        since: date | datetime | None = None,
        until: date | datetime | None = None,
        tenant: str | None = None,
    ) -> Sequence[Used]:
        """What models have used and cost, grouped by tenant, agent, model, mode or day; without groups, one total.

        `since` is included and `until` is not; without them, the last thirty days. Days are UTC.
        """
        for part in by:
            if part not in _PARTS:
                raise UsageError(f"usage can be grouped by {', '.join(_PARTS)}, not by {part!r}.")
        now = self._app.runtime().ports.clock.wall_us()
        first = now - 30 * DAY_US if since is None else _us(since)
        whose = tenant if self._tenant is None else self._tenant
        asked = TimeSpan(first, now + 1 if until is None else _us(until))
        rows = await self._transact(usage_of_all, by, asked, whose)
        return [_used(row) for row in rows]

    @property
    def prices(self) -> Sequence[Price]:
        """Prices that come before the shipped ones: `hf.budgets.prices = [Price(model="claude-…", kind="input", …)]`.

        They are the program's, for all tenants.
        """
        return self._app.book.prices or ()

    @prices.setter
    def prices(self, prices: Sequence[Price]) -> None:
        if self._tenant is not None:
            raise UsageError("prices are the program's, for all tenants: set hf.budgets.prices.")
        self._app.book.prices = tuple(prices)

    async def list(self, *, tenant: str | None = None, limit: int = 1_000, after: str | None = None) -> Page[Budget]:
        """Budgets, or those of one tenant as a whole, by whose they are; also what tenants have spent of a default."""
        tenant = tenant if self._tenant is None else self._tenant
        used = await self._transact(list_default_uses, tenant)
        return part_of([*await self._set(tenant), *map(_budget, used)], limit, after, _place)

    async def _set(self, tenant: str | None = None) -> Sequence[Budget]:
        """Budgets as they were set."""
        found = await self._transact(list_budgets, "tenant" if tenant is not None else None, tenant)
        return [_budget(row) for row in found]

    @changing("budgets delete")
    async def delete(self, id: str) -> None:
        """Delete a budget, with what was spent of it."""
        if self._tenant is not None and not await self._is_ours(id, self._tenant):
            raise NotFound(f"there is no budget {id} in this database.")
        await self._transact(delete_budget, id)

    async def _is_ours(self, id: str, tenant: str) -> bool:
        found = next((row for row in await self._set() if row.id == id), None)
        if found is None or found.scope != "session":
            return found is not None and (found.scope, found.subject) == ("tenant", tenant)
        return (await self._transact(find_session, found.subject)).tenant == tenant


def _place(budget: Budget) -> str:
    """Where a budget stands in a list."""
    period_us = 0 if budget.per is None else durations.microseconds(budget.per)
    return f"{budget.scope}\n{budget.subject}\n{period_us:020}"


def _budget(row: BudgetState) -> Budget:
    whose = row.scope, row.subject
    scope, subject = ("each_tenant", "") if whose == _DEFAULT else whose
    return Budget(
        id=row.id,
        scope=scope,
        subject=subject,
        per=timedelta(microseconds=row.period_us) if row.period_us else None,
        cost=Decimal(row.limit_nano) / 1_000_000_000,
        policy=row.policy,
        spent=Decimal(row.spent_nano) / 1_000_000_000,
        reserved=Decimal(row.reserved_nano) / 1_000_000_000,
    )


async def set_budget(tx: Transaction, row: BudgetRow) -> None:
    await tx.one(BudgetsSql.set_budget, **row._asdict())


async def delete_budget(tx: Transaction, id: str) -> None:
    if await tx.one(BudgetsSql.delete_budget, id=id) is None:
        raise NotFound(f"there is no budget {id} in this database.")
    await tx.run(BudgetsSql.delete_uses, id=id)
    await tx.run(BudgetsSql.delete_reservations, id=id)


@reading
async def list_budgets(tx: Transaction, scope: str | None, subject: str | None) -> list[BudgetState]:
    return await tx.many(BudgetsSql.list_budgets, scope=scope, subject=subject)


@reading
async def list_default_uses(tx: Transaction, tenant: str | None) -> list[BudgetState]:
    if tenant is None:
        return await tx.many(BudgetsSql.list_default_uses)
    return await tx.many(BudgetsSql.list_defaults_of, tenant=tenant)


def _us(moment: object) -> int:
    if not isinstance(moment, date):
        raise UsageError(validation.expected("since and until", "a date or a datetime", moment))
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if moment.tzinfo is None:
        raise UsageError("a time needs a time zone: datetime(…, tzinfo=UTC).")
    return round(moment.timestamp() * 1e6)


def _used(row: UsedRow) -> Used:
    day = date(1970, 1, 1) + timedelta(days=row.day) if row.day else None
    return Used(**{**row._asdict(), "day": day})
