"""What the processes that an invoker starts are told: where the backends are, and where code is found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.facades.flatagents.config import BackendConfig, config_of
from holdfast.settings import environment_with

_PATH = "PYTHONPATH"
BACKENDS = "FLATAGENTS_BACKENDS"  # a configuration, as JSON


def environment_config() -> BackendConfig | None:
    """The backends that the environment names, if it does."""
    text = named_backends()
    return None if text is None else config_of(json.loads(text))


def named_backends() -> str | None:
    """What the environment says of backends, as it is written there."""
    return os.environ.get(BACKENDS)


def take_environment(file: Path) -> None:
    """Take variables from a file that only this user reads, as if the process had been started with them."""
    os.environ.update(json.loads(file.read_text("utf-8")))


def child_environment(backends: Mapping[str, Any] | None, url: str | None = None) -> dict[str, str]:
    """This process's environment, for one that is to find the same code, this database and these backends."""
    found = {_PATH: os.pathsep.join(path for path in sys.path if path)}
    if backends is not None:
        found[BACKENDS] = json.dumps(dict(backends))
    return {**environment_with(url), **found}


def let_children_import(folder: str, allowed: bool) -> None:
    """Whether the processes that this one starts find the modules of a folder, after those of their own."""
    others = [path for path in os.environ.get(_PATH, "").split(os.pathsep) if path not in ("", folder)]
    os.environ[_PATH] = os.pathsep.join([*others, *([folder] if allowed else [])])
    if not os.environ[_PATH]:
        del os.environ[_PATH]
