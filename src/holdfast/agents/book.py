"""The book of models: one open model for each name and event loop, what an account is called, what a turn costs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models import Model, ModelFailure, open_model
from holdfast.models.prices import Price, Tier, cost
from holdfast.models.script import Script
from holdfast.models.spool import Shelf
from holdfast.settings import Settings

log = logging.getLogger("holdfast.agents")

NO_KEY = "there is no key to the provider here. Set ANTHROPIC_API_KEY where the workers run, or use a scripted: model."
# Where the SDK finds a key, or another way to pay or to reach a provider.
_CREDENTIALS = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE", "ANTHROPIC_CONFIG_DIR"),
    *("ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_IDENTITY_TOKEN_FILE", "ANTHROPIC_FEDERATION_RULE_ID"),
)


class ModelBook:
    def __init__(self, settings: Callable[[], Settings], ports: Callable[[], Ports]) -> None:
        self._settings = settings
        self._ports = ports
        self._open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Model]] = weakref.WeakKeyDictionary()
        self.scripts: dict[str, Script] = {}
        self.prices: Sequence[Price] | None = None  # in place of those that are shipped
        self.substitute: Model | None = None  # for tests: answers for every model
        self.per_call: Decimal | None = None  # for tests: what every call costs, whatever it uses
        self.shelf: Shelf | None = None  # for tests: where scripted models keep their batches

    def open(self, name: str) -> Model:
        if self.substitute is not None:
            return self.substitute
        opened = self._open.setdefault(asyncio.get_running_loop(), {})
        key = f"{self.credential(name)} {name}"  # a client keeps the key that it was made with
        if key not in opened:
            if self.lacks_key(name):
                raise ModelFailure("bad_request", f"model {name}: {NO_KEY}", bought="no")
            settings = self._settings()
            opened[key] = open_model(
                name,
                base_url=settings.provider_url or None,
                ports=self._ports(),
                scripts=self.scripts,
                pace=settings.script_pace.total_seconds(),
                witness=Path(settings.script_witness) if settings.script_witness else None,
                batch_time=settings.script_batch_time.total_seconds(),
                batches=self.shelf,
            )
        return opened[key]

    def lacks_key(self, name: str) -> bool:
        """Whether nothing here says who pays for this model, so that a call of it cannot but fail."""
        if self.substitute is not None or name.startswith("scripted:") or self._settings().provider_url:
            return False
        if any(os.environ.get(variable) for variable in _CREDENTIALS):
            return False
        return not Path.home().joinpath(".config", "anthropic").is_dir()  # where the SDK keeps profiles

    def credential(self, name: str) -> str:
        if name.startswith("scripted:"):
            return "scripted"
        key = os.environ.get("ANTHROPIC_API_KEY", "")
        place = self._settings().provider_url or "anthropic"
        return f"{place}#{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int:
        """What a turn cost, in billionths of a USD. An answer that has no price is kept all the same, and told of."""
        try:
            return self._nano(model, usage, tier)
        except UsageError as problem:
            log.warning("a turn is accounted as free: %s", problem)
            return 0

    def most_nano(self, model: str, input_tokens: int, max_tokens: int, tier: Tier = "standard") -> int:
        """The most that a call may cost: all of its input is new to the cache, and all that it may write is written.

        `UsageError` when the model has no price: a budget that counts it as nothing is no budget.
        """
        return self._nano(model, {"cache_creation_input_tokens": input_tokens, "output_tokens": max_tokens}, tier)

    def _nano(self, model: str, usage: dict[str, Any], tier: Tier) -> int:
        if self.per_call is not None:
            usd = self.per_call / 2 if tier == "batch" else self.per_call
        else:
            usd = cost(model, usage, tier, self.prices)
        return int((usd * 1_000_000_000).to_integral_value())

    async def close(self) -> None:
        for model in self._open.pop(asyncio.get_running_loop(), {}).values():
            await model.close()
