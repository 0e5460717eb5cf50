"""`SDKRuntimeWrapper`: the backends of one runtime, and machines that run with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.facades.flatagents.config import BackendConfig, Backends, create_backends
from holdfast.facades.flatagents.hooks import DistributedWorkerHooks
from holdfast.facades.flatagents.launching import SubprocessInvoker
from holdfast.facades.flatagents.protocols import RegistrationBackend, WorkBackend


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
