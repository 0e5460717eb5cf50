"""The SQL files of access as Python sees them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.access.rows import AuditHead, AuditRow, LoginRow, RequestKeyRow, TokenRow
from holdfast.kernel.sql import Exec, Many, One, Statements, groups_of

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
