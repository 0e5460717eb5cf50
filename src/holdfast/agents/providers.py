"""Providers: one open model for each name and event loop, what an account is called, what a turn costs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from holdfast.client.core import Core, LoopState
from holdfast.errors import UsageError
from holdfast.models import Model, ModelFailure, open_model
from holdfast.models.facts import SCRIPTED
from holdfast.models.prices import Price, Tier, cost
from holdfast.models.protocol import ColdStart
from holdfast.models.registry import Provider, ProviderRegistry, default_provider, missing_script
from holdfast.models.script import Script
from holdfast.models.spool import Shelf
from holdfast.text import shown

# Access to models: what the loop, and whatever else asks a model, needs of the app.


class ModelAccess(Protocol):
    """Where models come from, with who pays for them and what they cost."""

    def open(self, name: str) -> Model: ...

    def lack(self, name: str) -> str | None:
        """What is missing here, so that this model cannot be asked."""

    def credential(self, name: str) -> str:
        """Which account pays: a name for it, never the key."""

    def provider(self, name: str) -> str:
        """What the provider of a model is called."""

    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int: ...

    def most_nano(self, model: str, input_tokens: int, max_tokens: int, tier: Tier = "standard", **how: Any) -> int:
        """The most a call may cost."""

    def require_price(self, model: str, *, hour: bool = False) -> None:
        """`UsageError` when money cannot be counted for this model."""


async def make_ready(models: ModelAccess, name: str) -> Model | ModelFailure | UsageError:
    """Open a model with all that its first call would wait for: what it imports, its key, its client.

    Do this before the intent of a call is stored, and only send after it: if the process dies in between, nobody knows
    whether the call was paid for. The caller stores what is wrong with the call that it belongs to.
    """
    try:
        model = models.open(name)
        if isinstance(model, ColdStart):
            await model.warm()
    except (ModelFailure, UsageError) as problem:
        return problem
    return model


log = logging.getLogger("holdfast.agents")


class ModelCatalog:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._open: weakref.WeakKeyDictionary[LoopState, dict[str, Model]] = weakref.WeakKeyDictionary()
        self.scripts: dict[str, Script] = {}
        self.providers = ProviderRegistry()
        self._default = default_provider(lambda: core.settings.provider_url)
        self.prices: Sequence[Price] | None = None  # in place of those that are shipped
        self.substitute: Model | None = None  # for tests: answers for every model
        self.per_call: Decimal | None = None  # for tests: what every call costs, whatever it uses
        self.shelf: Shelf | None = None  # for tests: where scripted models keep their batches

    def open(self, name: str) -> Model:
        if self.substitute is not None:
            return self.substitute
        opened = self._open.setdefault(self._core.here(), {})
        key = f"{self.credential(name)} {name}"  # a client keeps the key that it was made with
        if key not in opened:
            opened[key] = self._opened(name)
        return opened[key]

    def _opened(self, name: str) -> Model:
        if not self._is_scripted(name):
            if (found := self._provider(name)) is None:
                return self._default.open(name)
            provider, model = found
            if (lack := provider.lack()) is not None:
                raise ModelFailure("bad_request", f"model {name}: {lack}.", bought="no")
            return provider.open(model)
        settings = self._core.settings
        return open_model(
            f"scripted:{name}" if name in self.scripts else name,
            ports=self._core.ports,
            scripts=self.scripts,
            pace=settings.script_pace.total_seconds(),
            witness=Path(settings.script_witness) if settings.script_witness else None,
            batch_time=settings.script_batch_time.total_seconds(),
            batches=self.shelf,
        )

    def _provider(self, name: str) -> tuple[Provider, str] | None:
        return None if name in self.scripts else self.providers.of(name)

    def add_script(self, name: str, script: Script) -> None:
        """Let a script answer for a model from the next call on."""
        self.scripts[name] = script
        for opened in self._open.values():
            for key in [key for key in opened if key.split(" ", 1)[1] in (name, f"scripted:{name}")]:
                del opened[key]

    def advice_on_key(self, name: str) -> str | None:
        """What to do where nothing says who pays for this model, so that a call cannot but fail; None: it is known."""
        if self.substitute is not None or self._is_scripted(name) or self._provider(name) is not None:
            return None
        return self._default.advice_on_key()

    def lack(self, name: str) -> str | None:
        """What is missing here, so that this model cannot be asked at all; None: nothing that is known."""
        if self.substitute is not None or self._is_scripted(name):
            return None
        if (found := self._provider(name)) is not None:
            return found[0].lack()
        if (prefix := self.providers.missing(name)) is not None:
            return f"no provider {prefix!r} is registered here: hf.provider({prefix!r}, …)"
        return self._default.lack()

    def lack_of_stored(self, name: str) -> str | None:
        """As `lack`, for an agent that this program does not define: nor does it have its script then."""
        if self.substitute is None and (script := missing_script(name, self.scripts)) is not None:
            return f"there is no script {script!r} here: hf.script({script!r}, …)"
        return self.lack(name)

    def _is_scripted(self, name: str) -> bool:
        return name.startswith("scripted:") or name in self.scripts

    def credential(self, name: str) -> str:
        if self._is_scripted(name):
            return SCRIPTED
        if (found := self._provider(name)) is not None:
            return found[0].credential()
        return self._default.credential()

    def provider(self, name: str) -> str:
        if self._is_scripted(name):
            return SCRIPTED
        return self._default.name if self._provider(name) is None else name.partition(":")[0]

    async def warm(self, names: Iterable[str]) -> None:
        """Make models ready for their first call: what they import, and their clients. Nothing is sent."""
        for name in sorted(names):
            try:
                if self._is_scripted(name) or self.lack(name) is not None:
                    continue
                if isinstance(model := self.open(name), ColdStart):
                    await model.warm()
            except Exception as problem:  # noqa: BLE001  the first call meets it again, and its run reports it
                log.warning("model %s could not be prepared: %s", name, shown(problem))

    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int:
        """What a turn cost, in billionths of a USD. An answer that has no price is kept and logged."""
        try:
            return self._nano(model, usage, tier)
        except UsageError as problem:
            log.warning("a turn is accounted as free: %s", shown(problem))
            return 0

    def most_nano(self, model: str, input_tokens: int, max_tokens: int, tier: Tier = "standard", **how: Any) -> int:
        """The most that a call may cost: all of its input is new to the cache, and all that it may write is written.

        `how` it is served, as a usage says it. `UsageError` when the model has no price: a budget that counts it as
        nothing is not a budget.
        """
        written = {"cache_creation_input_tokens": input_tokens, "output_tokens": max_tokens}
        return self._nano(model, {**written, **how}, tier)

    def require_price(self, model: str, *, hour: bool = False) -> None:
        """`UsageError`, which says how to give a price, when money cannot be counted for this model.

        `hour`: it is to write entries of the cache that live an hour.
        """
        every: dict[str, Any] = {
            "input_tokens": 1,
            "output_tokens": 1,
            "cache_read_input_tokens": 1,
            "cache_creation_input_tokens": 2,
        }
        every |= {"cache_creation": {"ephemeral_1h_input_tokens": int(hour)}}
        self._nano(model, every, "standard")

    def _nano(self, model: str, usage: dict[str, Any], tier: Tier) -> int:
        if self.per_call is not None:
            usd = self.per_call / 2 if tier == "batch" else self.per_call
        else:
            usd = cost(model, usage, tier, self.prices)
        return int((usd * 1_000_000_000).to_integral_value())

    async def close(self) -> None:
        for model in self._open.pop(self._core.here(), {}).values():
            await model.close()
