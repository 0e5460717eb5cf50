"""Providers: a program registers each under a prefix, and `prefix:name` is a model of it.

A name without a prefix is a model of the default provider. This is the only place that says which one that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models.anthropic import AnthropicModel, AnthropicProvider
from holdfast.models.protocol import Model
from holdfast.models.script import Script
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import Shelf

# From the name of a model to the model.


_SCRIPTED = "scripted:"
_DEFAULT = ("", "priced")  # the latter has prices in facts.json


def open_model(  # noqa: PLR0913  # what either kind of model may need
    name: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    ports: Ports | None = None,
    scripts: Mapping[str, Script] | None = None,
    pace: float = 0.0,
    witness: Path | None = None,
    batch_time: float = 0.0,
    batches: Path | Shelf | None = None,
) -> Model:
    """The model of that name: `scripted:` or `scripted:NAME`, one of `scripts`; any other is the default provider's.

    Each of them takes `Batches` too. Of a scripted model they end after `batch_time` seconds and are kept in `batches`.

    Nothing is connected or imported before the first call. One instance serves all the default provider's models of a
    credential.
    """
    if name.startswith(_SCRIPTED):
        return ScriptedModel(
            _script(name, scripts or {}),
            pace=pace,
            witness=witness,
            ports=ports,
            batch_time=batch_time,
            batches=batches,
        )
    return AnthropicModel(api_key, base_url)


def missing_script(name: str, scripts: Mapping[str, Script]) -> str | None:
    """The script that this model needs and the program does not have."""
    wanted = name.removeprefix(_SCRIPTED)
    return None if wanted == name or wanted in _DEFAULT or wanted in scripts else wanted


def _script(name: str, scripts: Mapping[str, Script]) -> Script:
    wanted = name.removeprefix(_SCRIPTED)
    if wanted in scripts:
        return scripts[wanted]
    if wanted in _DEFAULT:
        return Script.default()
    have = ", ".join(sorted(scripts)) or "none"
    raise UsageError(f"there is no script {wanted!r} for model {name!r}; registered: {have}.")


_PREFIX = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_TAKEN = frozenset({"scripted", AnthropicProvider.name})


@runtime_checkable
class Provider(Protocol):
    """Where models of one kind come from. It connects to nothing before a call."""

    def open(self, model: str) -> Model:
        """The model of this name, which is the part after the prefix."""

    def lack(self) -> str | None:
        """What is missing in this process, so that no model of it can be asked; None: nothing that is known."""

    def credential(self) -> str:
        """Which account pays: a name for it, never the key. Rate limits are shared by what is named alike."""


class DefaultProvider(Provider, Protocol):
    """Who has the models whose names have no prefix. `open` raises `ModelFailure` where there is no key."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str:
        """The environment variable that a key is usually put into."""

    def advice_on_key(self) -> str | None:
        """What to do, where there is no key and no other way to pay; None: there is one."""


def default_provider(base_url: Callable[[], str]) -> DefaultProvider:
    return AnthropicProvider(base_url)


def key_of(model: str) -> str:
    """What to set for a model. Only the program that registers a provider under a prefix knows the name of its key."""
    return "the key of its provider" if ":" in model else AnthropicProvider.key


class ProviderRegistry:
    """The providers of one program, by prefix."""

    def __init__(self) -> None:
        self._known: dict[str, Provider] = {}

    def add(self, prefix: str, provider: Provider) -> None:
        if not _PREFIX.fullmatch(str(prefix)):
            raise UsageError(f"{prefix!r} cannot be the prefix of a provider: use 1 to 32 of a-z, 0-9, - and _.")
        if prefix in _TAKEN:
            raise UsageError(f"the prefix {prefix!r} is Holdfast's own: choose another.")
        if not isinstance(provider, Provider):
            raise UsageError(f"a provider has open, lack and credential; {type(provider).__name__} does not.")
        self._known[prefix] = provider

    def of(self, name: str) -> tuple[Provider, str] | None:
        """The provider of a model's name, and what that provider calls it; None: it has no registered prefix."""
        prefix, colon, rest = name.partition(":")
        provider = self._known.get(prefix) if colon else None
        return None if provider is None else (provider, rest)

    def missing(self, name: str) -> str | None:
        """The prefix of a model's name, if nobody has registered a provider under it."""
        prefix, colon, _ = name.partition(":")
        if not colon or prefix in _TAKEN or prefix in self._known or not _PREFIX.fullmatch(prefix):
            return None
        return prefix

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)
