"""Money as pages: what was spent, by day, tenant, agent and model, and how near each budget is to its edge."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

from fastapi import Query
from pydantic import ValidationError
from starlette.responses import Response

from holdfast.agents.money.api import Budget, Part, Used
from holdfast.errors import UsageError
from holdfast.http.api.money import NewBudget, delete_budget, list_budgets, set_budget, show_used
from holdfast.http.api.routes import Paging
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.charts import bars
from holdfast.http.pages.filters import Tab, from_when, now_of
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.values import Page

pages = Pages()

RANGES = (
    Tab("yesterday", "Yesterday"),
    Tab("1d", "Day"),
    Tab("7d", "Week"),
    Tab("30d", "Month"),
    Tab("90d", "Quarter"),
)
PARTS: dict[str, Part] = {"tenant": "tenant", "agent": "agent", "model": "model", "day": "day", "mode": "mode"}
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run what begins so


@dataclass(frozen=True, slots=True)
class MoneyView:
    """`rows` are what the table shows, the dearest first."""

    rows: Sequence[Used]
    total: Decimal
    turns: int
    tokens: int
    drawing: str
    first_day: str
    last_day: str
    by: str
    parts: tuple[Tab, ...]
    since: str
    ranges: tuple[Tab, ...]
    tenant: str
    budgets: Page[Budget]


@pages.page("/money", "money.html", like="GET /usage")
async def show_money(
    seen: RequestScope,
    by: str = "agent",
    since_: Annotated[str, Query(alias="since")] = "30d",
    tenant: str | None = None,
) -> MoneyView:
    part, (begin, end) = _part(by), _range(seen, since_)
    days = await show_used(seen, ["day"], since=begin, until=end, tenant=tenant or None)
    used = await show_used(seen, [part], since=begin, until=end, tenant=tenant or None)
    rows = sorted(used, key=lambda each: each.cost_nano, reverse=True)
    by_day = _by_day(end or now_of(seen), days, begin)
    shown = [Tab(each, each.capitalize()) for each in PARTS if each != "tenant" or seen.tenant is None]
    return MoneyView(
        rows=rows[:200],
        total=sum((each.cost for each in rows), Decimal()),
        turns=sum(each.turns for each in rows),
        tokens=sum(_tokens(each) for each in rows),
        drawing=bars(by_day, "Cost by day, in USD", unit="$"),
        first_day=by_day[0][0],
        last_day=by_day[-1][0],
        by=part,
        parts=tuple(shown),
        since=since_,
        ranges=RANGES,
        tenant=tenant or "",
        budgets=await list_budgets(seen, Paging(None, 200), tenant=tenant or None),
    )


def _range(seen: PrincipalScope, span: str) -> tuple[datetime, datetime | None]:
    """From when, and until when if that is not now. Yesterday is a day of UTC, as budgets have them."""
    now = now_of(seen)
    if span == "yesterday":
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return today - timedelta(days=1), today
    return from_when(seen, span) or now - timedelta(days=30), None


def _by_day(end: datetime, days: Sequence[Used], begin: datetime) -> list[tuple[str, Decimal]]:
    """Every day of the range, also those without any use; the last ninety at most."""
    spent = {each.day: each.cost for each in days}
    last = (end - timedelta(microseconds=1)).date()
    count = min(90, max(1, (last - begin.date()).days + 1))
    wanted = [last - timedelta(days=number) for number in reversed(range(count))]
    return [(day.isoformat(), spent.get(day, Decimal())) for day in wanted]


def _tokens(used: Used) -> int:
    return used.input_tokens + used.output_tokens + used.cache_write_tokens + used.cache_read_tokens


def _part(name: str) -> Part:
    if name not in PARTS:
        raise UsageError(f"money is shown by {', '.join(PARTS)}, not by {name[:40]!r}.")
    return PARTS[name]


@pages.page("/money.csv", "", like="GET /usage")
async def download_money(
    seen: RequestScope,
    since_: Annotated[str, Query(alias="since")] = "30d",
    tenant: str | None = None,
) -> Response:
    """Every part at once, a line for each, as a file for a spreadsheet."""
    parts: list[Part] = ["day", "tenant", "agent", "model", "mode"]
    begin, end = _range(seen, since_)
    used = await show_used(seen, parts, since=begin, until=end, tenant=tenant or None)
    text = io.StringIO()
    table = csv.writer(text)
    counts = ("turns", "input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens", "cost")
    table.writerow([*parts, *counts])
    for each in used:
        table.writerow([_cell(getattr(each, name)) for name in (*parts, *counts)])
    named = {"content-disposition": 'attachment; filename="holdfast-money.csv"', "cache-control": "no-store"}
    return Response(text.getvalue().encode(errors="replace"), headers=named, media_type="text/csv; charset=utf-8")


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_DANGEROUS) else text


@pages.action("/budgets", like="PUT /budgets")
async def set_one_budget(seen: RequestScope, form: Filled) -> Redirect:
    scope = form.text("scope") or "everybody"
    given = {
        "cost": form.text("cost") or "",
        "tenant": form.text("tenant") if scope == "tenant" else None,
        "each_tenant": scope == "each_tenant",
        "per": form.text("per"),
        "policy": form.text("policy") or "end",
    }
    try:
        new = NewBudget.model_validate(given)
    except ValidationError:
        raise UsageError('policy is "end", "ask" or "wait".') from None
    await set_budget(seen, new)
    return Redirect("/money")


@pages.action("/budgets/{id}/delete", like="DELETE /budgets/{id}")
async def delete_one_budget(seen: RequestScope, id: str) -> Redirect:
    await delete_budget(seen, id)
    return Redirect("/money")
