"""How a gateway serves: where it listens, whom it lets in, and what a connection may use."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypedDict

from holdfast.errors import UsageError
from holdfast.resp import DEFAULT_BIND
from holdfast.resp.client import KeyPrincipal, PopForm, from_table

HEARTBEAT = timedelta(seconds=30)
DEAD_AFTER = timedelta(seconds=90)
STATS_KEPT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class RespOptions:
    """The documented defaults. A connection that has not shown a key has `auth_within` to do it."""

    bind: str | None = DEFAULT_BIND  # None: only `unix`
    unix: Path | None = None  # a socket for processes of the same user; they show keys too
    principals: tuple[KeyPrincipal, ...] = ()  # of a workers file; those in the database count besides
    shared: KeyPrincipal | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    pop_form: PopForm = "bulk"
    connections: int = 10_000
    auth_within: timedelta = timedelta(seconds=5)
    idle: timedelta = timedelta(seconds=300)  # without a request; above the 90 seconds after which a worker is dead
    output: int = 32 << 20  # bytes of replies that a client has not read yet
    dead_after: timedelta = DEAD_AFTER

    @property
    def heartbeat(self) -> timedelta:
        """How often workers are asked to beat: three beats may be lost before one counts as dead."""
        return min(HEARTBEAT, self.dead_after / 3)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs both a certificate (tls_cert) and its key (tls_key).")
        if self.bind is None:
            if self.unix is None:
                raise UsageError("a gateway listens on an address (--bind), on a Unix socket (--unix), or on both.")
            return
        host, _ = self.address
        if self.tls_cert is None and not _is_loopback(host):
            raise UsageError(
                f"{self.bind} can be reached from other machines, and keys would cross the network in the clear: "
                f"give a certificate (--tls-cert, --tls-key), or listen on 127.0.0.1."
            )

    @property
    def address(self) -> tuple[str, int]:
        assert self.bind is not None
        host, separator, port = self.bind.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65_535:
            raise UsageError(f"--bind must be HOST:PORT, as {DEFAULT_BIND}; got {self.bind!r}.")
        return host.strip("[]") or "127.0.0.1", int(port)


class RespServing(TypedDict, total=False):
    """What `hf.resp` takes."""

    workers: Mapping[str, str] | None
    tls_cert: Path | None
    tls_key: Path | None
    pop_form: PopForm
    unix: Path | None


def serving(
    bind: str | None,
    *,
    workers: Mapping[str, str] | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    pop_form: PopForm = "bulk",
    unix: Path | None = None,
) -> RespOptions:
    """The options of a gateway in a program, which knows its workers' keys by their ids."""
    given = from_table(workers) if workers else ()
    return RespOptions(bind, unix, given, tls_cert=tls_cert, tls_key=tls_key, pop_form=pop_form)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
