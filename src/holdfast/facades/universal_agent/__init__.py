"""Universal Agent's interface: runs, leases, worker pools and gateways, by the names of its document.

`install()` registers the module names that its programs import, and then they run as they are.
"""

from holdfast.facades.universal_agent.gateway import (
    AgentEvent,
    EventType,
    ExternalGateway,
    Gateway,
    GatewayRequest,
    GatewayResult,
    GatewaySession,
    GatewaySessionSummary,
    InProcessGateway,
)
from holdfast.facades.universal_agent.install import effect_of, install, uninstall
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db
from holdfast.facades.universal_agent.state import (
    acquire_run_lease,
    complete_run,
    fail_run,
    get_run,
    heartbeat_run_lease,
    is_cancel_requested,
    list_run_attempts,
    load_last_checkpoint,
    mark_run_cancelled,
    queue_run,
    release_run_lease,
    request_run_cancel,
    requeue_run,
    save_checkpoint,
)
from holdfast.facades.universal_agent.worker_pool import PoolConfig, Worker, WorkerConfig, WorkerPoolManager

__all__ = [
    "AgentEvent",
    "EventType",
    "ExternalGateway",
    "Gateway",
    "GatewayRequest",
    "GatewayResult",
    "GatewaySession",
    "GatewaySessionSummary",
    "InProcessGateway",
    "PoolConfig",
    "RuntimeDb",
    "Worker",
    "WorkerConfig",
    "WorkerPoolManager",
    "acquire_run_lease",
    "complete_run",
    "connect_runtime_db",
    "effect_of",
    "fail_run",
    "get_run",
    "heartbeat_run_lease",
    "install",
    "is_cancel_requested",
    "list_run_attempts",
    "load_last_checkpoint",
    "mark_run_cancelled",
    "queue_run",
    "release_run_lease",
    "request_run_cancel",
    "requeue_run",
    "save_checkpoint",
    "uninstall",
]
