"""Access to models: what the loop, and whatever else asks a model, needs of the app."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.models import Model, ModelFailure
from holdfast.models.prices import Tier
from holdfast.models.protocol import Warming


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


async def make_ready(models: Models, name: str) -> Model | ModelFailure | UsageError:
    """Open a model with all that its first call would wait for: what it imports, its key, its client.

    Do this before the intent of a call is stored, and only send after it: if the process dies in between, nobody knows
    whether the call was paid for. The caller stores what is wrong with the call that it belongs to.
    """
    try:
        model = models.open(name)
        if isinstance(model, Warming):
            await model.warm()
    except (ModelFailure, UsageError) as problem:
        return problem
    return model
