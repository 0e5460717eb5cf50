"""A client as the commands see it: who it is and how it wants its replies. It lives as long as its connection."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.errors import UsageError
from holdfast.resp.endings import PoppedJob
from holdfast.resp.records import Epoch

# Principals: who a connection acts for, by the key that it has shown.
#
# A key is 32 random bytes, written as 64 hex digits. Only its SHA-256 is stored, and digests are compared in constant
# time, so neither the length nor a prefix of a key can be learned. A key is never logged and never sent back.


WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANY = "*"
SHARED = "shared"  # the principal of the shared key, until AUTH names a worker
_HEX = re.compile(rb"[0-9A-Fa-f]{64}")
_SHORTEST_SHARED = 16


@dataclass(frozen=True, slots=True)
class KeyPrincipal:
    """What a key may do. `workers` are the ids that it may register: its own name unless it says otherwise."""

    name: str
    digest: str
    workers: tuple[str, ...]
    queues: tuple[str, ...] | None = None  # None: all
    commands: tuple[str, ...] | None = None  # None: all; AUTH, HELLO, PING, QUIT and RESET are always allowed
    tenant: str = ""
    stored: bool = False  # in the database, where it can be revoked

    def may_register(self, worker: str) -> bool:
        return ANY in self.workers or worker in self.workers

    def may_use(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def may_call(self, command: str) -> bool:
        return self.commands is None or command in self.commands


def new_key() -> str:
    return secrets.token_hex(32)


def digest_of(key: bytes) -> str:
    """What is stored of a key: 64 hex digits stand for the bytes that they spell."""
    return hashlib.sha256(bytes.fromhex(key.decode()) if _HEX.fullmatch(key) else key).hexdigest()


def check_worker_id(id: object) -> str:
    if not isinstance(id, str) or not WORKER_ID.fullmatch(id):
        raise UsageError("a worker id has 1 to 64 letters, digits, hyphens and underscores.")
    return id


def matching(digest: str, principals: Iterable[KeyPrincipal]) -> KeyPrincipal | None:
    """The one with this digest. All are compared, so that the time says nothing about which one it was."""
    found = None
    for each in principals:
        if hmac.compare_digest(digest, each.digest):
            found = each
    return found


def from_file(path: Path) -> tuple[KeyPrincipal, ...]:
    """The keys of a TOML file: `[workers]`, and in it `"worker-001" = "64 hex digits"`."""
    try:
        workers = tomllib.loads(path.read_text("utf-8")).get("workers")
    except OSError as problem:
        raise UsageError(f"the workers file {path} cannot be read: {problem.strerror}.") from problem
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"the workers file {path} is not TOML: {problem}.") from None
    if not isinstance(workers, dict) or not workers:
        raise UsageError(f'the workers file {path} needs a table [workers] with lines like "worker-001" = "<64 hex>".')
    return from_table(workers)


def from_table(workers: Mapping[str, object]) -> tuple[KeyPrincipal, ...]:
    made = []
    for name, key in workers.items():
        check_worker_id(name)
        if not isinstance(key, str) or not _HEX.fullmatch(key.encode()):
            raise UsageError(f"the key of worker {name} must be 64 hex digits; `holdfast resp keys add` makes one.")
        made.append(KeyPrincipal(name, digest_of(key.encode()), (name,)))
    if len({each.digest for each in made}) < len(made):
        raise UsageError("two workers have the same key; give each its own.")
    return tuple(made)


def shared(key: str) -> KeyPrincipal:
    """The principal of a key that all workers share: AUTH <worker id> <key> says which of them this is."""
    if len(key.encode()) < _SHORTEST_SHARED:
        raise UsageError(f"a shared key has at least {_SHORTEST_SHARED} bytes.")
    return KeyPrincipal(SHARED, digest_of(key.encode()), ())


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
    unread: PoppedJob | None = None  # what such a worker was told to run, until it reads the plan
    undelivered: list[PoppedJob] = field(default_factory=list)  # claimed by a request whose reply has not gone out yet
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

    def unstarted(self) -> list[PoppedJob]:
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
