"""`install()`: lets programs import `flatagents` and get this interface. It never hides a package of that name.

The package is in the folder `importable`, which `install` adds to the end of this process's path, and of that of the
processes it starts: so `python -m flatagents.run` works there too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from holdfast.errors import UsageError

NAME = "flatagents"
FOLDER = str(Path(__file__).with_name("importable"))
_MARK = "MADE_BY_HOLDFAST"
_VARIABLE = "PYTHONPATH"


def install() -> None:
    """Let this process, and those that it starts, import the modules that the document's programs import."""
    known = sys.modules.get(NAME)
    if known is None:
        found = importlib.util.find_spec(NAME)
        theirs = found is not None and not str(found.origin).startswith(FOLDER)
    else:
        theirs = not hasattr(known, _MARK)
    if theirs:
        raise UsageError(f"a package named {NAME} is here already; uninstall it first, or import {__package__} itself.")
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    inherited = _inherited()
    if FOLDER not in inherited:
        os.environ[_VARIABLE] = os.pathsep.join([*inherited, FOLDER])
    importlib.invalidate_caches()
    importlib.import_module(NAME)


def uninstall() -> None:
    """Take the names away again, as far as `install` added them."""
    if FOLDER in sys.path:
        sys.path.remove(FOLDER)
    os.environ[_VARIABLE] = os.pathsep.join(path for path in _inherited() if path != FOLDER)
    if not os.environ[_VARIABLE]:
        del os.environ[_VARIABLE]
    if hasattr(sys.modules.get(NAME), _MARK):
        for name in [each for each in sys.modules if each.split(".")[0] == NAME]:
            del sys.modules[name]


def _inherited() -> list[str]:
    """The path that processes which this one starts have beside their own."""
    return [path for path in os.environ.get(_VARIABLE, "").split(os.pathsep) if path]
