"""Money as the app offers it: budgets that are set and looked at, and what was used, told apart as one likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from holdfast import checking, durations
from holdfast.agents.conversation import Session
from holdfast.agents.definitions import nano_of
from holdfast.agents.money.budgets import DAY_US
from holdfast.agents.money.records import BudgetRow, BudgetState, UsedRow
from holdfast.agents.reaching import App, Reaching
from holdfast.agents.reading import find_session
from holdfast.agents.statements import Budgets
from holdfast.durations import Duration
from holdfast.errors import BadSetting, NotFound, UsageError
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import derived_id

Policy = Literal["end", "ask", "wait"]
Part = Literal["tenant", "agent", "model", "mode", "day"]

_PARTS: tuple[Part, ...] = ("tenant", "agent", "model", "mode", "day")
_MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent, and what is."""

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


class BudgetsList(Reaching):
    """`hf.budgets`: `await hf.budgets.set("20.00", tenant="acme", per="1d")`."""

    def __init__(self, app: App, tenant: str | None = None) -> None:
        self._app = app
        self._tenant = tenant  # None: of everybody

    async def set(
        self,
        cost: str | Decimal,
        *,
        tenant: str | None = None,
        session: Any = None,
        per: Duration | None = None,
        policy: Policy = "end",
    ) -> Budget:
        """What a tenant, a session (with `tenant`, that tenant's) or, without either, everybody may spend.

        It holds for ever, or for each `per`: "1d" are UTC days.

        A call that does not fit any more ends its run ("end"), lets it wait for a person ("ask"), or for the next
        period ("wait"). Setting it again changes the amount and the policy; what is spent stays spent.
        """
        if not isinstance(cost, str | Decimal):
            raise BadSetting(f'money is written as text, "{cost}", never as a float.')
        if policy not in ("end", "ask", "wait"):
            raise BadSetting(f'policy is "end", "ask" or "wait", not {policy!r}.')
        tenant = tenant if self._tenant is None else self._tenant
        if tenant is not None:
            encoding.check_tenant(tenant)
        subject = (tenant or "") if session is None else await self._session(session, tenant)
        scope = "session" if session is not None else "everybody" if tenant is None else "tenant"
        period_us = 0 if per is None else durations.microseconds(per)
        if per is not None and not period_us:
            raise BadSetting('per is longer than nothing, such as "1d"; without it the budget holds for ever.')
        if policy == "wait" and not period_us:
            raise BadSetting('policy="wait" waits for the next period: say per="1d".')
        id = derived_id("budget", scope, subject, period_us)
        row = BudgetRow(id, scope, subject, period_us, nano_of(str(cost)), policy)
        await self._transact(set_budget, row)
        return next(each for each in await self._all() if each.id == row.id)

    async def _session(self, session: Any, tenant: str | None) -> str:
        if isinstance(session, Session):
            return (await session).id
        if not isinstance(session, str):
            raise UsageError(f"session is a Session, its id or its key, not {checking.shown(session)}.")
        sessions = self._app.sessions if not tenant else self._app.tenant(tenant).sessions
        return (await sessions.get(session)).id

    async def list(self, *, tenant: str | None = None) -> list[Budget]:
        """All of them, or those of one tenant as a whole."""
        return list(await self._all(tenant if self._tenant is None else self._tenant))

    async def _all(self, tenant: str | None = None) -> Sequence[Budget]:
        found = await self._transact(list_budgets, "tenant" if tenant is not None else None, tenant)
        return [_budget(row) for row in found]

    async def delete(self, id: str) -> None:
        """Take a budget away, with what was spent of it."""
        if self._tenant is not None and not await self._is_ours(id, self._tenant):
            raise NotFound(f"there is no budget {id} in this database.")
        await self._transact(delete_budget, id)

    async def _is_ours(self, id: str, tenant: str) -> bool:
        found = next((row for row in await self._all() if row.id == id), None)
        if found is None or found.scope != "session":
            return found is not None and (found.scope, found.subject) == ("tenant", tenant)
        return (await self._transact(find_session, found.subject)).tenant == tenant


def _budget(row: BudgetState) -> Budget:
    return Budget(
        id=row.id,
        scope=row.scope,
        subject=row.subject,
        per=timedelta(microseconds=row.period_us) if row.period_us else None,
        cost=Decimal(row.limit_nano) / 1_000_000_000,
        policy=row.policy,
        spent=Decimal(row.spent_nano) / 1_000_000_000,
        reserved=Decimal(row.reserved_nano) / 1_000_000_000,
    )


async def set_budget(tx: Transaction, row: BudgetRow) -> None:
    await tx.one(Budgets.set_budget, **row._asdict())


async def delete_budget(tx: Transaction, id: str) -> None:
    if await tx.one(Budgets.delete_budget, id=id) is None:
        raise NotFound(f"there is no budget {id} in this database.")
    await tx.run(Budgets.delete_uses, id=id)
    await tx.run(Budgets.delete_reservations, id=id)


@reading
async def list_budgets(tx: Transaction, scope: str | None, subject: str | None) -> list[BudgetState]:
    return await tx.many(Budgets.list_budgets, scope=scope, subject=subject)


class MoneyFace(Reaching):
    """What the app offers for money."""

    def _open_money(self, app: App) -> None:
        self.budgets = BudgetsList(app)

    async def used(
        self,
        *by: Part,
        since: date | datetime | None = None,
        until: date | datetime | None = None,
        tenant: str | None = None,
    ) -> list[Used]:
        """What models have used and cost, told apart by tenant, agent, model, mode or day; all in one without any.

        `since` is included and `until` is not; without them, the last thirty days. Days are UTC.
        """
        for part in by:
            if part not in _PARTS:
                raise UsageError(f"usage is told apart by {', '.join(_PARTS)}, not by {part!r}.")
        now = self._app.runtime().ports.clock.wall_us()
        flags = {f"by_{part}": int(part in by) for part in _PARTS}
        first = now - 30 * DAY_US if since is None else _us(since)
        rows = await self._transact(usage_of_all, flags, first, now + 1 if until is None else _us(until), tenant)
        return [_used(row) for row in rows]


def _us(moment: object) -> int:
    if not isinstance(moment, date):
        raise UsageError(f"since and until are a date or a datetime, not {checking.shown(moment)}.")
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if moment.tzinfo is None:
        raise UsageError("a time needs its zone: datetime(…, tzinfo=UTC).")
    return round(moment.timestamp() * 1e6)


def _used(row: UsedRow) -> Used:
    day = date(1970, 1, 1) + timedelta(days=row.day) if row.day else None
    return Used(**{**row._asdict(), "day": day})


@reading
async def usage_of_all(
    tx: Transaction, flags: dict[str, int], since: int, until: int, tenant: str | None
) -> list[UsedRow]:
    return await tx.many(Budgets.usage, **flags, since=since, until=until, tenant=tenant, limit=_MOST)
