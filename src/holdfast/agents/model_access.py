"""Access to models: what the loop, and whatever else asks a model, needs of the app."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.models import Model
from holdfast.models.prices import Tier


class Models(Protocol):
    """Where models come from, with who pays for them and what they cost."""

    def open(self, name: str) -> Model: ...

    def lack(self, name: str) -> str | None:
        """What is missing here, so that this model cannot be asked."""

    def credential(self, name: str) -> str:
        """Which account pays: a name for it, never the key."""

    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int: ...

    def most_nano(self, model: str, input_tokens: int, max_tokens: int, tier: Tier = "standard", **how: Any) -> int:
        """The most a call may cost."""

    def require_price(self, model: str, *, hour: bool = False) -> None:
        """`UsageError` when money cannot be counted for this model."""
