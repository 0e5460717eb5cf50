"""What tests of Holdfast, and of programs built on it, stand on. Nothing in the runtime imports it."""

from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Crash
from holdfast.testing.crew import Stuck
from holdfast.testing.lab import Lab, lab
from holdfast.testing.labs import Labs

__all__ = ["Crash", "Lab", "LabClock", "Labs", "Stuck", "lab"]
