"""What tests of Holdfast, and of programs built on it, stand on. Nothing in the runtime imports it."""

from holdfast.models.script import Script, call, calls, refuse, say, think, truncate
from holdfast.testing.bought import Rebought
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Crash
from holdfast.testing.crew import Stuck
from holdfast.testing.lab import Lab, lab
from holdfast.testing.labs import Labs

__all__ = [
    "Crash",
    "Lab",
    "LabClock",
    "Labs",
    "Rebought",
    "Script",
    "Stuck",
    "call",
    "calls",
    "lab",
    "refuse",
    "say",
    "think",
    "truncate",
]
