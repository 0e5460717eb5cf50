"""`universal_agent.gateway`: the names that the document imports from there."""

from __future__ import annotations

from holdfast.facades.universal_agent.external import ExternalGateway
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.facades.universal_agent.protocol import (
    AgentEvent,
    EventType,
    Gateway,
    GatewayRequest,
    GatewayResult,
    GatewaySession,
    GatewaySessionSummary,
)

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
]
