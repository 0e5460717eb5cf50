"""Code of a program by where it is: hooks, and the app with its agents, as command lines name them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.agents.core import AgentsCore
from holdfast.errors import UsageError
from holdfast.machines.api import Machines


def import_hooks(named: Sequence[str]) -> Any:
    """Hooks by where they are: `paper=shop.hooks:PaperHooks`, or `shop.hooks:PaperHooks` alone."""
    if not named:
        return None
    sys.path.insert(0, str(Path.cwd()))
    if len(named) == 1 and "=" not in named[0]:
        return [_import(named[0], "hooks")]
    return {name: _import(target, "hooks") for name, target in map(named_pair, named)}


def import_app(target: str) -> tuple[AgentsCore, Machines]:
    """The app that `shop:hf` names, as what is built on it sees it. A module with just one needs no `:hf`."""
    sys.path.insert(0, str(Path.cwd()))
    found = [_import(target, "app")] if ":" in target else [*vars(_import(target, "app")).values()]
    apps = [parts for each in found if (parts := _parts(each)) is not None]
    if len(apps) != 1:
        raise UsageError(f"{target!r} is not a Holdfast app; write MODULE:APP, as in shop:hf.")
    core, machines = apps[0]
    machines.engine.app = target
    return core, machines


def _parts(app: object) -> tuple[AgentsCore, Machines] | None:
    core, machines = getattr(app, "_core", None), getattr(app, "_machines", None)
    return (core, machines) if isinstance(core, AgentsCore) and isinstance(machines, Machines) else None


def _import(target: str, what: str) -> Any:
    module, _, name = target.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError, ValueError) as problem:
        raise UsageError(f"{what} {target!r} cannot be imported: {problem}. Write MODULE:OBJECT.") from None


def named_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        name, value = text.rpartition(":")[2], text
    return name, value
