"""Rows of access: tokens, logins, the audit and answered requests."""

from __future__ import annotations

from typing import NamedTuple


class TokenRow(NamedTuple):
    id: str
    name: str
    role: str
    tenant: str | None
    scopes: str
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None
    now: int


class LoginRow(NamedTuple):
    hash: str
    kind: str
    name: str
    role: str
    tenant: str | None
    scopes: str
    token: str | None
    created_at: int
    seen_at: int | None
    expires_at: int
    now: int


class AuditRow(NamedTuple):
    seq: int
    at: int
    actor: str
    role: str
    tenant: str | None
    phase: str
    about: int | None
    action: str
    subject: str
    status: int | None
    detail: str
    hash: str


class AuditHead(NamedTuple):
    seq: int
    hash: str
    now: int


class RequestKeyRow(NamedTuple):
    owner: str
    key: str
    digest: str
    status: int | None
    answer: str | None
    at: int
    now: int
