"""A client as the commands see it: who it is and how it wants its replies. It lives as long as its connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from holdfast.resp.deliveries import Popped
from holdfast.resp.principals import KeyPrincipal
from holdfast.resp.rows import Epoch

PopForm = Literal["bulk", "array"]


@dataclass(slots=True)
class Client:
    id: int
    address: str
    pop_form: PopForm  # how BRPOP replies: the value, as AGX documents it, or [key, value] as Redis does
    connected_at: float = 0.0  # by the gateway's clock
    protocol: int = 2
    principal: KeyPrincipal | None = None
    name: str = ""
    library: str = ""
    library_version: str = ""
    leaving: bool = False  # close the connection after this reply
    queued: list[list[bytes]] | None = None  # what came since MULTI
    queued_size: int = 0  # bytes of that
    refused: bool = False  # something since MULTI could not be queued
    worker: str | None = None  # the worker that this connection has registered
    epoch: Epoch | None = None  # the epoch that it began by that
    published: bool = False  # it registered with SET or PING, as the published AGW does; pops reply bare ids
    unread: Popped | None = None  # what such a worker was told to run, until it reads the plan
    undelivered: list[Popped] = field(default_factory=list)  # claimed by a request whose reply has not gone out yet
    executing: bool = False  # inside of EXEC, where nothing waits
    refusals: int = 0  # commands before AUTH

    @property
    def worker_id(self) -> str:
        """The worker that this connection acts for: the one it registered, else the one of its key."""
        return self.worker or self.who

    @property
    def tenant(self) -> str:
        return self.principal.tenant if self.principal is not None else ""

    @property
    def who(self) -> str:
        return self.principal.name if self.principal is not None else ""

    def unstarted(self) -> list[Popped]:
        """What was claimed for this client, and cannot have begun."""
        unread = [] if self.unread is None or self.unread in self.undelivered else [self.unread]
        return [*self.undelivered, *unread]

    def forget_worker(self) -> None:
        self.worker, self.epoch, self.published = None, None, False

    def reset(self, pop_form: PopForm) -> None:
        """As if it had just connected."""
        self.protocol, self.principal, self.name, self.pop_form = 2, None, "", pop_form
        self.queued, self.refused = None, False
        self.forget_worker()
