"""Rows of the gateway's tables, as its statements return them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.ids import JobId


class KeyRow(NamedTuple):
    name: str
    digest: str
    workers: str
    queues: str | None
    commands: str | None
    tenant: str
    created_at: int
    revoked_at: int | None


class ValueRow(NamedTuple):
    key: bytes
    place: int
    kind: str
    value: bytes | None
    expires_at: int | None
    now: int


class KeyName(NamedTuple):
    space: str
    key: bytes


class PartRow(NamedTuple):
    part: bytes
    score: float | None
    value: bytes | None


class Extent(NamedTuple):
    parts: int
    first: bytes | None
    last: bytes | None


class PlanRow(NamedTuple):
    id: str
    body: str
    digest: str
    created_at: int


class PlanUse(NamedTuple):
    actions: int
    jobs: int
    last_used_at: int | None
    active: int


class ActionRow(NamedTuple):
    id: str
    plan: str
    inputs: int
    created_at: int


class PlanJobRow(NamedTuple):
    id: str
    tenant: str
    action: str
    plan: str
    place: int
    job: JobId
    retries: int
    created_at: int


class ActionJob(NamedTuple):
    id: str
    place: int
    retries: int
    state: str | None
    attempts: int | None
    max_attempts: int | None


class Holder(NamedTuple):
    seq: int
    slots: int
    held: int


class Backlog(NamedTuple):
    route: int
    jobs: int


class ProgressRow(NamedTuple):
    seq: int
    progress: str
