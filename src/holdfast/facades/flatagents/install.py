"""`install()`: lets programs import `flatagents` and get this interface. It never hides a package of that name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from holdfast.errors import UsageError

NAME = "flatagents"
MODULES = (NAME, f"{NAME}.distributed", f"{NAME}.hooks")
_MADE_BY = "__holdfast_facade__"


def install() -> None:
    """Register the module names that the document's programs import. A process that is started does not see them."""
    known = sys.modules.get(NAME)
    if known is not None and hasattr(known, _MADE_BY):
        return
    if known is not None or importlib.util.find_spec(NAME) is not None:
        raise UsageError(f"a package named {NAME} is here already; uninstall it first, or import {__package__} itself.")
    for name in MODULES:
        sys.modules[name] = _module(name)
    for name in MODULES[1:]:
        setattr(sys.modules[NAME], name.rpartition(".")[2], sys.modules[name])


def uninstall() -> None:
    """Take the names away again, as far as `install` registered them."""
    if hasattr(sys.modules.get(NAME), _MADE_BY):
        for name in MODULES:
            sys.modules.pop(name, None)


def _module(name: str) -> ModuleType:
    made = ModuleType(name, "FlatAgents' names, served by Holdfast.")
    made.__path__ = []
    setattr(made, _MADE_BY, True)
    ours = importlib.import_module(__package__ or "")
    for each in ours.__all__:
        setattr(made, each, getattr(ours, each))
    return made
