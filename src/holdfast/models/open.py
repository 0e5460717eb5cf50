"""From the name of a model to the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models.protocol import Model
from holdfast.models.script import Script
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import Shelf

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
    """The model of that name: `scripted:` or `scripted:NAME`, one of `scripts`; any other is Anthropic's.

    Each of them takes `Batches` too. Of a scripted model they end after `batch_time` seconds and are kept in `batches`.

    Nothing is connected or imported before the first call. One instance serves all Anthropic models of a credential.
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
    from holdfast.models.anthropic import AnthropicModel

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
