"""Cost: what the provider says was used, and what that costs."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.agents.runs.commit import Spent
from holdfast.kernel import codec
from holdfast.models.prices import Tier


class CountedUsage(Protocol):
    """A turn as it is stored."""

    @property
    def usage(self) -> str | None: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...


def stored_usage(turn: CountedUsage) -> dict[str, Any]:
    """What the provider said was used; where its own words have been pruned, what was counted of them."""
    stored: dict[str, Any] | None = codec.decode(turn.usage)
    return stored or {
        "input_tokens": turn.input_tokens,
        "output_tokens": turn.output_tokens,
        "cache_creation_input_tokens": turn.cache_write_tokens,
        "cache_read_input_tokens": turn.cache_read_tokens,
    }


class Priced(Protocol):
    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int: ...


def spent_on(book: Priced, model: str, usage: dict[str, Any], tier: Tier = "standard") -> Spent:
    return Spent(
        usage=codec.encode(usage, what="the usage", cap=1 << 20),
        input_tokens=int(usage.get("input_tokens") or 0),
        output_tokens=int(usage.get("output_tokens") or 0),
        cache_write_tokens=int(usage.get("cache_creation_input_tokens") or 0),
        cache_read_tokens=int(usage.get("cache_read_input_tokens") or 0),
        cost_nano=book.cost_nano(model, usage, tier),
    )
