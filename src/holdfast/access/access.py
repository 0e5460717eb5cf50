"""Access to an app from outside, as a program sees it: `hf.access`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast import durations
from holdfast.access.audit import Audit
from holdfast.access.principals import Principal
from holdfast.access.records import LoginRow, LoginsSql, RequestKeyRow, RequestsSql
from holdfast.access.tokens import Tokens, hashed
from holdfast.access.webhooks import Webhooks
from holdfast.client.core import Core
from holdfast.client.handles import View
from holdfast.durations import Duration
from holdfast.errors import RequestConflict, RequestUnderWay
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading

# Answered requests: a request that names a key is done once, and the same request again gets the same answer.
#
# A key is taken before the request is done. If its program dies meanwhile, the same request may take it again.


_PATIENCE_US = durations.microseconds("1m")
_AGE_US = durations.microseconds("7d")


class StoredAnswer(NamedTuple):
    """What was answered before, as JSON."""

    status: int
    answer: str


class Requests(View):
    """`hf.access.requests`."""

    async def take(self, owner: str, key: str, digest: str) -> StoredAnswer | None:
        """None: do the request, then call `answered` or `free`. `RequestConflict`: the key was for another one."""
        return await self._ask(take_request, owner, codec.stored_key(key), digest)

    async def answered(self, owner: str, key: str, status: int, answer: str) -> None:
        await self._ask(answer_request, owner, codec.stored_key(key), status, answer)

    async def free(self, owner: str, key: str) -> None:
        """The request was refused: its key may be used again."""
        await self._ask(free_request, owner, codec.stored_key(key))


async def take_request(tx: Transaction, owner: str, key: str, digest: str) -> StoredAnswer | None:
    named = {"owner": owner, "key": key}
    await tx.run(RequestsSql.prune_requests, age_us=_AGE_US)
    if await tx.one(RequestsSql.take_request, **named, digest=digest, patience_us=_PATIENCE_US) is not None:
        return None
    there: RequestKeyRow | None = await tx.one(RequestsSql.find_request, **named)
    if there is None or there.digest != digest:
        raise RequestConflict(key)
    if there.status is None or there.answer is None:
        raise RequestUnderWay(key)
    return StoredAnswer(there.status, there.answer)


async def answer_request(tx: Transaction, owner: str, key: str, status: int, answer: str) -> None:
    await tx.run(RequestsSql.answer_request, owner=owner, key=key, status=status, answer=answer)


async def free_request(tx: Transaction, owner: str, key: str) -> None:
    await tx.run(RequestsSql.free_request, owner=owner, key=key)


# Logins: a browser trades a token, or a link that works once, for a session whose secret is in its cookie.
#
# A session ends 12 hours after it was last seen, and after seven days at the latest.


IDLE_US = durations.microseconds("12h")
LONGEST_US = durations.microseconds("7d")
_SEEN_US = durations.microseconds("1m")  # not at every request


class Logins(View):
    """`hf.access.logins`."""

    async def link(self, principal: Principal, *, lasts: Duration = "15m") -> str:
        """The secret of a link that logs somebody in, once."""
        secret = secrets.token_urlsafe(32)
        await self._ask(add_login, _row(secret, "link", principal, durations.microseconds(lasts)))
        return secret

    async def use(self, link: str) -> str | None:
        """The secret of a session for who follows the link; None when it was used, or is too old.

        What is no link changes nothing, and does not wait for those who write.
        """
        if await self._ask(find_link, hashed(link)) is None:
            return None
        secret = secrets.token_urlsafe(32)
        found = await self._ask(use_link, hashed(link), hashed(secret))
        return secret if found else None

    async def begin(self, principal: Principal) -> str:
        """The secret of a new session."""
        secret = secrets.token_urlsafe(32)
        await self._ask(add_login, _row(secret, "session", principal, LONGEST_US))
        return secret

    async def principal(self, secret: str) -> Principal | None:
        """Whose session this is; None when it has ended."""
        row = await self._ask(find_login, hashed(secret))
        if row is None:
            return None
        if row.seen_at is None or row.now - row.seen_at > _SEEN_US:
            await self._ask(see_login, row.hash)
        return _principal(row)

    async def live(self, secrets: Collection[str]) -> frozenset[str]:
        """Those of these sessions that have not ended."""
        by_hash = {hashed(secret): secret for secret in secrets}
        return frozenset(by_hash[row.hash] for row in await self._ask(live_logins, list(by_hash)))

    async def end(self, secret: str) -> None:
        await self._ask(end_login, hashed(secret))


def _row(secret: str, kind: str, principal: Principal, lasts_us: int) -> dict[str, object]:
    return {
        "hash": hashed(secret),
        "kind": kind,
        "name": principal.name,
        "role": principal.role,
        "tenant": principal.tenant,
        "scopes": json.dumps(sorted(principal.scopes)),
        "token": principal.token,
        "lasts_us": lasts_us,
    }


def _principal(row: LoginRow) -> Principal:
    return Principal(row.name, row.role, row.tenant, frozenset(json.loads(row.scopes)), row.token)  # type: ignore[arg-type]


async def add_login(tx: Transaction, row: dict[str, object]) -> None:
    await tx.run(LoginsSql.prune_logins)
    await tx.run(LoginsSql.add_login, **row)


@reading
async def find_link(tx: Transaction, link: str) -> LoginRow | None:
    return await tx.one(LoginsSql.find_link, hash=link)


async def use_link(tx: Transaction, link: str, session: str) -> bool:
    found = await tx.one(LoginsSql.use_link, hash=link)
    if found is None:
        return False
    named = found._asdict()
    kept = {name: named[name] for name in ("name", "role", "tenant", "scopes", "token")}
    await tx.run(LoginsSql.add_login, hash=session, kind="session", lasts_us=LONGEST_US, **kept)
    return True


@reading
async def find_login(tx: Transaction, hash: str) -> LoginRow | None:
    return await tx.one(LoginsSql.find_login, hash=hash, idle_us=IDLE_US)


@reading
async def live_logins(tx: Transaction, hashes: Sequence[str]) -> list[LoginRow]:
    return await tx.many(LoginsSql.live_logins, hashes=hashes, idle_us=IDLE_US)


async def see_login(tx: Transaction, hash: str) -> None:
    await tx.run(LoginsSql.see_login, hash=hash)


async def end_login(tx: Transaction, hash: str) -> None:
    await tx.run(LoginsSql.end_login, hash=hash)


class Access:
    """`hf.access`: tokens, logins, the audit, requests that were answered, and webhooks."""

    def __init__(self, app: Core) -> None:
        self.tokens = Tokens(app)
        self.logins = Logins(app)
        self.audit = Audit(app)
        self.requests = Requests(app)
        self.webhooks = Webhooks()
