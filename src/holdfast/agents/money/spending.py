"""Spending: what the provider says was used, and what that costs."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.agents.answering import Spent
from holdfast.kernel import encoding
from holdfast.models.prices import Tier


class Priced(Protocol):
    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int: ...


def spent_on(book: Priced, model: str, usage: dict[str, Any], tier: Tier = "standard") -> Spent:
    return Spent(
        usage=encoding.encode(usage, what="the usage", cap=1 << 20),
        input_tokens=int(usage.get("input_tokens") or 0),
        output_tokens=int(usage.get("output_tokens") or 0),
        cache_write_tokens=int(usage.get("cache_creation_input_tokens") or 0),
        cache_read_tokens=int(usage.get("cache_read_input_tokens") or 0),
        cost_nano=book.cost_nano(model, usage, tier),
    )
