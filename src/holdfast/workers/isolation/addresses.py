"""Where a function lives, so that another process can find it by name and nothing needs to be pickled.

What Python ran as `__main__` is loaded there under another name, so that its `if __name__ == "__main__":` part
does not run a second time.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from holdfast.errors import UsageError

SCRIPT = "__holdfast_main__"


class Address(NamedTuple):
    module: str
    name: str
    script: str | None  # the program's file, when the module is not one that can be imported


def address_of(function: Callable[..., Any], use: str = 'with isolate="process"') -> Address:
    """Where `function` can be found again; `UsageError` when only this process can reach it. `use` is what for."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or "<" in name or inspect.ismethod(function):
        raise UsageError(
            f"{name or function!r} cannot run {use}: another process finds a function by its name "
            f"in its module. Move it to module level, and pass what it uses from its surroundings as arguments."
        )
    return address_in(module, name, use)


def address_in(module: str, name: str, use: str) -> Address:
    """Where what a module calls `name` can be found again."""
    if module not in ("__main__", SCRIPT):
        return Address(module, name, None)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return Address(spec.name, name, None)
    file = getattr(main, "__file__", None)
    if file is None:
        raise UsageError(f"{name} cannot run {use}: it is not in a file. Put it in a module.")
    return Address(SCRIPT, name, str(Path(file).absolute()))


def find(address: Address) -> object:
    """Whatever has that name now. Importing runs code of the user's, which may raise anything."""
    found: object = _script(address.script) if address.script else importlib.import_module(address.module)
    for part in address.name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UsageError(
            f"{address.script or address.module} has no {address.name!r} when another process loads it. "
            f'Define the function at module level, outside `if __name__ == "__main__":`.'
        )
    return found


def _script(path: str) -> ModuleType:
    if SCRIPT in sys.modules:
        return sys.modules[SCRIPT]
    module = ModuleType(SCRIPT)
    module.__file__ = path
    # Under both names while it runs: kinds are named after the main program.
    before, sys.modules["__main__"], sys.modules[SCRIPT] = sys.modules["__main__"], module, module
    try:
        SourceFileLoader(SCRIPT, path).exec_module(module)
    except BaseException:
        sys.modules["__main__"] = before
        del sys.modules[SCRIPT]
        raise
    return module
