"""Profiles: which model a name in a machine's file stands for, by `profiles.yml` beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.machines.documents import MOST_BYTES, plain_value, read_document

FILE = "profiles.yml"


def model_of(name: str, folder: Path) -> str:
    """The model of a profile: the override, else the profile of this name, else the default one, else the name."""
    profiles = _read(folder / FILE)
    data = profiles.get("data", {})
    known = data.get("model_profiles", {})
    chosen = data.get("override") or name or data.get("default")
    if not chosen:
        raise UsageError(f"an agent needs a model: name one, or a default in {folder / FILE}.")
    profile = known.get(chosen)
    if profile is None:
        return str(chosen)
    if not isinstance(profile, dict) or not isinstance(profile.get("name"), str):
        raise UsageError(f"profile {chosen!r} in {folder / FILE} has no name of a model.")
    provider = profile.get("provider")
    is_own = provider in (None, "anthropic") or ":" in profile["name"]
    return str(profile["name"]) if is_own else f"{provider}:{profile['name']}"


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with file.open("rb") as opened:
        text = opened.read(MOST_BYTES + 1).decode("utf-8", "replace")
    stored = plain_value(read_document(text, str(file)))
    if not isinstance(stored, dict) or not isinstance(stored.get("data", {}), dict):
        raise UsageError(f"{file} is not a file of profiles.")
    return stored
