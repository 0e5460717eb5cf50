"""What a call costs: dated rows per (model, kind, tier, prompt size), in decimals.

The provider's whole usage object goes in, as it is stored: it says which tier and speed served the call, and of a call
that sampled several times (server tools, the provider's own compaction, an advisor, a fallback) what each time used. A
kind that was used and has no price is an error, never free: a budget that counts unknown prices as nothing is no
budget. A tier that has no rows is charged so that it is not less than any that has.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from holdfast.errors import UsageError
from holdfast.models.facts import family, known, shipped

Tier = Literal["standard", "batch", "fast", "priority"]
_MILLION = Decimal(1_000_000)
_ANY = "*"
_PLAIN = (None, "", "standard")
# Anywhere is the plain price; a region of one's choice costs a tenth more, whatever the tier.
_ANYWHERE = (None, "", "global", "not_available")
_REGION = Decimal("1.1")
_BY_REQUEST = "web_search"
_INCLUDED = ("message", "fallback_message")  # iterations whose tokens the usage counts as its own, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD for a million tokens of one kind (of `web_search`: requests), in prompts of more than `above` tokens."""

    model: str
    kind: str
    tier: str
    since: date
    usd: Decimal
    above: int = 0

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Price:
        return cls(**{**row, "since": date.fromisoformat(row["since"]), "usd": Decimal(row["usd"])})


@functools.cache
def shipped_prices() -> tuple[Price, ...]:
    return tuple(map(Price.read, shipped()["prices"]))


@functools.cache
def _shipped_by_name() -> Mapping[tuple[str, str, str], list[Price]]:
    """Every turn asks for a few of some hundred rows."""
    rows: dict[tuple[str, str, str], list[Price]] = {}
    for row in shipped_prices():
        rows.setdefault(_key(row), []).append(row)
    return rows


def _key(row: Price) -> tuple[str, str, str]:
    return row.model, row.kind, row.tier


class _Rates(NamedTuple):
    """By which prices a call is charged."""

    tier: str
    prices: Sequence[Price] | None
    day: date | None
    factor: Decimal

    def charge(self, model: str, counts: Mapping[str, int], size: int) -> Decimal:
        """What so much of each kind costs in a prompt of that size."""
        total = Decimal(0)
        for kind, count in counts.items():
            if count:
                row = price(model, kind, self.tier, self.prices, self.day, size)
                total += row.usd * count / _MILLION * (1 if kind == _BY_REQUEST else self.factor)
        return total


def cost(
    model: str,
    usage: Mapping[str, Any],
    tier: Tier = "standard",
    prices: Sequence[Price] | None = None,
    at: date | datetime | None = None,
) -> Decimal:
    """The price in USD of what `usage` says, on the day `at` (none: the latest prices).

    `tier` is the one that was asked for; what `usage` says of it holds. Rows given in `prices` come before the shipped
    ones. Raises `UsageError` where a price is missing.
    """
    day = at.date() if isinstance(at, datetime) else at
    factor = Decimal(1) if usage.get("inference_geo") in _ANYWHERE else _REGION
    rates = _Rates(served_tier(usage, tier), prices, day, factor)
    whole = Counter(counted(usage))
    total, included = Decimal(0), Counter[str]()
    for each in filter(_is_object, usage.get("iterations") or ()):
        counts = counted(each)
        total += rates.charge(str(each.get("model") or model), counts, prompt_size(each))
        if each.get("type", _INCLUDED[0]) in _INCLUDED:
            included.update(counts)
    return total + rates.charge(model, whole - included, prompt_size(usage))


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def served_tier(usage: Mapping[str, Any], asked: str) -> str:
    """By which tier a call is charged: its speed, or else where the provider says it was served."""
    speed, served = usage.get("speed"), usage.get("service_tier")
    if speed not in _PLAIN:
        return str(speed)
    return asked if served in (None, "") else str(served)


def price(  # noqa: PLR0917  # a row is named by all of them
    model: str, kind: str, tier: str, prices: Sequence[Price] | None = None, at: date | None = None, size: int = 0
) -> Price:
    """The row that holds for a prompt of `size` tokens on a day; before the first row's day, the first.

    A tier without rows costs what the standard one does, times the dearest there is; a batch is never dearer than that.
    """
    found = _found(model, kind, tier, prices, at, size)
    if found is not None:
        return found
    found = _found(model, kind, "standard", prices, at, size) if tier != "standard" else None
    if found is None:
        raise UsageError(
            f"there is no {tier} price for {kind} of model {model!r}: give one, or 0 if it is free, with "
            f'hf.budgets.prices = [Price(model={model!r}, kind="{kind}", tier="{tier}", since=…, usd=…), …].'
        )
    factor = 1 if tier == "batch" or kind == _BY_REQUEST else _dearest()
    return replace(found, tier=tier, usd=found.usd * factor)


def _found(  # noqa: PLR0917  # as above
    model: str, kind: str, tier: str, prices: Sequence[Price] | None, at: date | None, size: int
) -> Price | None:
    names = _names(model)
    for name in names if prices else ():
        if found := _chosen([row for row in prices or () if _key(row) == (name, kind, tier)], at, size):
            return found
    for name in names:
        if found := _chosen(_shipped_by_name().get((name, kind, tier), ()), at, size):
            return found
    return None


@functools.cache
def _dearest() -> Decimal:
    """How many times its standard price a model costs at most, in a tier that is known."""
    standard = {(row.model, row.kind, row.above): row.usd for row in shipped_prices() if row.tier == "standard"}
    rows = [(row.usd, standard.get((row.model, row.kind, row.above))) for row in shipped_prices()]
    return max(usd / plain for usd, plain in rows if plain)


@functools.lru_cache
def _names(model: str) -> tuple[str, ...]:
    facts = known(model)
    return model, family(model) if facts is None else facts.name, _ANY


def _chosen(rows: Iterable[Price], at: date | None, size: int) -> Price | None:
    fit = sorted((row for row in rows if row.above == 0 or size > row.above), key=lambda row: (row.since, row.above))
    if not fit:
        return None
    begun = [row for row in fit if at is None or row.since <= at] or [row for row in fit if row.since == fit[0].since]
    return max(begun, key=lambda row: (row.since, row.above))


def prompt_size(usage: Mapping[str, Any]) -> int:
    """All input tokens, cached or not: what the bands of a price go by."""
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(kind) or 0 for kind in kinds)


def counted(usage: Mapping[str, Any]) -> dict[str, int]:
    """What is paid for, by kind. Cache writes whose duration the provider does not say are of five minutes."""
    split = usage.get("cache_creation") or {}
    hour = split.get("ephemeral_1h_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens")
    short = split.get("ephemeral_5m_input_tokens") or 0 if written is None else max(0, written - hour)
    return {
        "input": usage.get("input_tokens") or 0,
        "output": usage.get("output_tokens") or 0,
        "cache_write_5m": short,
        "cache_write_1h": hour,
        "cache_read": usage.get("cache_read_input_tokens") or 0,
        "web_search": (usage.get("server_tool_use") or {}).get("web_search_requests") or 0,
    }
