"""Holdfast: durable jobs and agents on the database you already have.

Each name is imported when it is first used, so that a command which needs none of them starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import warn_of_namesake

if TYPE_CHECKING:
    from holdfast.agents.api.agent import Agent
    from holdfast.agents.api.run import Run
    from holdfast.agents.api.session import Session
    from holdfast.agents.compaction.config import Compaction
    from holdfast.agents.content import Document, Image
    from holdfast.agents.definition import Limits
    from holdfast.agents.tools import ServerTool, Tool, ToolContext
    from holdfast.agents.values import Turn
    from holdfast.app import Holdfast
    from holdfast.client.jobs import Job
    from holdfast.client.queues import Queue
    from holdfast.client.results import Result
    from holdfast.errors import HoldfastError, LeaseLost, RunFailed
    from holdfast.events import Event
    from holdfast.kernel.retry import RetryPolicy as Retry
    from holdfast.outcomes import Cancel, Discard, Snooze
    from holdfast.settings import Settings
    from holdfast.workers.context import JobContext

__all__ = [
    "Agent",
    "Cancel",
    "Compaction",
    "Discard",
    "Document",
    "Event",
    "Holdfast",
    "HoldfastError",
    "Image",
    "Job",
    "JobContext",
    "LeaseLost",
    "Limits",
    "Queue",
    "Result",
    "Retry",
    "Run",
    "RunFailed",
    "ServerTool",
    "Session",
    "Settings",
    "Snooze",
    "Tool",
    "ToolContext",
    "Turn",
]

_HOMES = {
    "Agent": "agents.api.agent",
    "Cancel": "outcomes",
    "Compaction": "agents.compaction.config",
    "Discard": "outcomes",
    "Document": "agents.content",
    "Event": "events",
    "Holdfast": "app",
    "HoldfastError": "errors",
    "Image": "agents.content",
    "Job": "client.jobs",
    "JobContext": "workers.context",
    "LeaseLost": "errors",
    "Limits": "agents.definition",
    "Queue": "client.queues",
    "Result": "client.results",
    "Retry": "kernel.retry",
    "Run": "agents.api.run",
    "RunFailed": "errors",
    "ServerTool": "agents.tools",
    "Session": "agents.api.session",
    "Settings": "settings",
    "Snooze": "outcomes",
    "Tool": "agents.tools",
    "ToolContext": "agents.tools",
    "Turn": "agents.values",
}
_OTHERWISE = {"Retry": "RetryPolicy"}  # what is called otherwise at home

warn_of_namesake()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        if name not in _HOMES:
            return _submodule(name)
        found = getattr(import_module(f"holdfast.{_HOMES[name]}"), _OTHERWISE.get(name, name))
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _submodule(name: str) -> Any:
    """`import holdfast` alone lets a program write `holdfast.errors.UsageError`."""
    try:
        return import_module(f"holdfast.{name}")
    except ModuleNotFoundError as problem:
        if problem.name != f"holdfast.{name}":
            raise
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}") from None
