"""What tests of Holdfast, and of programs built on it, stand on. Nothing in the runtime imports it."""

from holdfast.models.request_view import RequestView
from holdfast.models.script import Script, block, call, calls, ends, refuse, say, think, truncate
from holdfast.models.steps import expect
from holdfast.testing.bought import Rebought
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Crash
from holdfast.testing.crew import Stuck
from holdfast.testing.lab import Lab, lab
from holdfast.testing.labs import Labs
from holdfast.testing.sync_lab import SyncLab, sync_lab

__all__ = [
    "Crash",
    "Lab",
    "LabClock",
    "Labs",
    "Rebought",
    "RequestView",
    "Script",
    "Stuck",
    "SyncLab",
    "block",
    "call",
    "calls",
    "ends",
    "expect",
    "lab",
    "refuse",
    "say",
    "sync_lab",
    "think",
    "truncate",
]
