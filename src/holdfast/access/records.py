"""Rows of access: tokens, logins, the audit and answered requests."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.sql import Exec, Many, One, Statements, groups_of


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


# The SQL files of access as Python sees them.


_PACKAGE = "holdfast.access.sql"
_SCOPES = {"scopes": "json"}


class Count(NamedTuple):
    n: int


class TokensSql(Statements, package=_PACKAGE, file="tokens.sql", types=_SCOPES):
    add_token: One[TokenRow]
    find_token: One[TokenRow]
    token_of_hash: One[TokenRow]
    live_tokens: Many[TokenRow]
    list_tokens: Many[TokenRow]
    count_live: One[Count]
    end_token: One[TokenRow]
    revoke_token: One[TokenRow]


class LoginsSql(Statements, package=_PACKAGE, file="logins.sql", types=_SCOPES):
    add_login: Exec
    find_link: One[LoginRow]
    use_link: One[LoginRow]
    find_login: One[LoginRow]
    live_logins: Many[LoginRow]
    see_login: Exec
    end_login: Exec
    end_logins_of: Exec
    prune_logins: Exec


class AuditSql(Statements, package=_PACKAGE, file="audit.sql", rows={"entries": AuditRow}):
    lock_head: One[AuditHead]
    add_head: Exec
    add_entries: Exec
    list_entries: Many[AuditRow]
    entries_after: Many[AuditRow]


class RequestsSql(Statements, package=_PACKAGE, file="requests.sql", types={"answer": "json"}):
    take_request: One[RequestKeyRow]
    find_request: One[RequestKeyRow]
    answer_request: Exec
    free_request: Exec
    prune_requests: Exec


GROUPS = groups_of(__name__)
