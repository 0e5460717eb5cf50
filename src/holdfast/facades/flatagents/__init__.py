"""FlatAgents' interface: registries of workers and pools of work, by the names of its document."""

from holdfast.facades.flatagents.config import BackendConfig, Backends, create_backends
from holdfast.facades.flatagents.hooks import DistributedWorkerHooks, MachineHooks
from holdfast.facades.flatagents.install import SDKRuntimeWrapper, install, uninstall
from holdfast.facades.flatagents.launching import SubprocessInvoker, launch_machine
from holdfast.facades.flatagents.records import (
    RegistrationBackend,
    UnknownWorker,
    WorkBackend,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    WorkerStatus,
    WorkItem,
    WorkPool,
)
from holdfast.facades.flatagents.redis_backends import RedisRegistrationBackend, RedisWorkBackend
from holdfast.facades.flatagents.registration import (
    MemoryRegistrationBackend,
    PostgresRegistrationBackend,
    SQLiteRegistrationBackend,
)
from holdfast.facades.flatagents.triggers import TickFailed, Triggers, read_triggers
from holdfast.facades.flatagents.work import MemoryWorkBackend, PostgresWorkBackend, SQLiteWorkBackend

__all__ = [
    "BackendConfig",
    "Backends",
    "DistributedWorkerHooks",
    "MachineHooks",
    "MemoryRegistrationBackend",
    "MemoryWorkBackend",
    "PostgresRegistrationBackend",
    "PostgresWorkBackend",
    "RedisRegistrationBackend",
    "RedisWorkBackend",
    "RegistrationBackend",
    "SDKRuntimeWrapper",
    "SQLiteRegistrationBackend",
    "SQLiteWorkBackend",
    "SubprocessInvoker",
    "TickFailed",
    "Triggers",
    "UnknownWorker",
    "WorkBackend",
    "WorkItem",
    "WorkPool",
    "WorkerFilter",
    "WorkerRecord",
    "WorkerRegistration",
    "WorkerStatus",
    "create_backends",
    "install",
    "launch_machine",
    "read_triggers",
    "uninstall",
]
