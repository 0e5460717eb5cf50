"""The provider simulator: an HTTP server that speaks the provider's wire format, is as strict, and fails by rule.

`holdfast provider` runs it; tests run it in their own process with `simulator()`. What it answers follows from its seed
and the requests. What it is asked is in its witness, so that what was bought is known independently of us.
"""

from __future__ import annotations

from holdfast.models.simulator.server import SimulatedProvider, provider, simulator
from holdfast.models.simulator.state import FaultRule, read_rules

__all__ = ["FaultRule", "SimulatedProvider", "provider", "read_rules", "simulator"]
