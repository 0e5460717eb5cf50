"""`install()`: lets programs import `flatagents` and get this interface. It never hides a package of that name.

The package is in the folder `importable`, which `install` adds to the end of this process's path, and of that of the
processes it starts: so `python -m flatagents.run` works there too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from holdfast.errors import UsageError
from holdfast.facades.flatagents.config import BackendConfig, Backends, create_backends
from holdfast.facades.flatagents.environment import let_children_import
from holdfast.facades.flatagents.hooks import DistributedWorkerHooks
from holdfast.facades.flatagents.launching import SubprocessInvoker
from holdfast.facades.flatagents.records import RegistrationBackend, WorkBackend

# `SDKRuntimeWrapper`: the backends of one runtime, and machines that run with them.


@dataclass(frozen=True, slots=True)
class SDKRuntimeWrapper:
    """What machines of one runtime share. `invoker` starts what they launch; without one, processes with the same
    backends are started."""

    registration_backend: RegistrationBackend
    work_backend: WorkBackend
    invoker: SubprocessInvoker | None = None

    @classmethod
    def from_config(cls, config: BackendConfig | Mapping[str, Any] | None = None) -> Self:
        """A runtime with the backends of a configuration, or of a machine's settings."""
        made = create_backends(config)
        return cls(made.registration, made.work)

    def hooks(self) -> DistributedWorkerHooks:
        """Hooks with these backends, for `hf.machine(…, hooks=…)`."""
        backends = Backends(self.registration_backend, self.work_backend)
        return DistributedWorkerHooks(backends, invoker=self.invoker)


NAME = "flatagents"
FOLDER = str(Path(__file__).with_name("importable"))
_MARK = "MADE_BY_HOLDFAST"


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
    let_children_import(FOLDER, True)
    importlib.invalidate_caches()
    importlib.import_module(NAME)


def uninstall() -> None:
    """Take the names away again, as far as `install` added them."""
    if FOLDER in sys.path:
        sys.path.remove(FOLDER)
    let_children_import(FOLDER, False)
    if hasattr(sys.modules.get(NAME), _MARK):
        for name in [each for each in sys.modules if each.split(".")[0] == NAME]:
            del sys.modules[name]
