"""Holdfast: durable jobs and agents on the database you already have."""

from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.content import Document, Image
from holdfast.agents.definition import Limits
from holdfast.agents.tools import ServerTool, Tool, ToolContext
from holdfast.agents.values.runs import Turn
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, LeaseLost, RunFailed
from holdfast.events import Event
from holdfast.jobs import Job
from holdfast.kernel.retry import RetryPolicy as Retry
from holdfast.outcomes import Cancel, Discard, Snooze
from holdfast.queues import Queue
from holdfast.results import Result
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
