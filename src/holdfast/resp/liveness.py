"""Half-open connections: a peer that vanished without a word is noticed within a minute, by both sides.

A connection that carries nothing is probed by the system. One on which something was sent ends when nobody confirms it.
A worker counts as dead after 90 seconds, and one that is gone must not count as alive because its last pop still waits.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

QUIET: Final = 30  # seconds without traffic before the first probe
EVERY: Final = 10  # seconds between two probes
PROBES: Final = 3  # without an answer, after which the connection ends
_OPTIONS: Final = (
    ("TCP_KEEPIDLE", QUIET),
    ("TCP_KEEPALIVE", QUIET),  # as macOS calls it
    ("TCP_KEEPINTVL", EVERY),
    ("TCP_KEEPCNT", PROBES),
    ("TCP_USER_TIMEOUT", (QUIET + EVERY * PROBES) * 1_000),  # milliseconds; Linux alone has it
)


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Let the system end this connection when its peer is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
