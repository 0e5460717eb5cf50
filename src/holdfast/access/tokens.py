"""Tokens: 256 bits that a program shows, each with a role, perhaps a tenant, scopes and an end.

The store has only the hash of a token. Revoking one ends the logins that were made with it in the same transaction.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, cast

from holdfast import durations, validation
from holdfast.access.principals import API, Principal, Role
from holdfast.access.records import LoginsSql, TokenRow, TokensSql
from holdfast.client.handles import View
from holdfast.durations import Duration
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import new_id
from holdfast.observe import changing
from holdfast.values import Page, Stored, page_of, place, value_of

TokenState = Literal["live", "expired", "revoked"]
PREFIX = "hft_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token as it stands in the store, without the token itself."""

    SHOWN: ClassVar = ("state",)

    id: str
    name: str
    role: Role
    tenant: str | None
    scopes: Stored
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    now: datetime

    @property
    def state(self) -> TokenState:
        if self.revoked_at is not None:
            return "revoked"
        return "live" if self.expires_at is None or self.expires_at > self.now else "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(TokenRecord):
    """A token that was made just now; `secret` is shown this once."""

    secret: str


class Tokens(View):
    """`hf.access.tokens`."""

    @changing("tokens create")
    async def create(
        self,
        name: str,
        *,
        role: Role = "viewer",
        tenant: str | None = None,
        scopes: Iterable[str] = API,
        lasts: Duration | None = None,
        by: str = "",
    ) -> NewToken:
        """A new token; its `secret` is in this answer and nowhere else. Without `lasts` it has no end."""
        codec.check_text(name, what="a token's name")
        given = validation.listed(scopes, "scopes", str, "scopes")
        Principal(name, role, tenant, frozenset(given))  # which says what is wrong with them
        if tenant is not None and "metrics" in given:
            raise UsageError("the scope metrics shows what all tenants do: a tenant's token cannot have it.")
        secret = PREFIX + secrets.token_urlsafe(32)
        values = {
            "id": str(new_id(self._app.runtime().ports)),
            "hash": hashed(secret),
            "name": name,
            "role": role,
            "tenant": tenant,
            "scopes": json.dumps(sorted(set(given))),
            "lasts_us": None if lasts is None else durations.microseconds(lasts),
            "created_by": by,
        }
        row = await self._ask(add_token, values)
        return value_of(NewToken, row, secret=secret)

    async def list(self, *, limit: int = 1_000, after: str | None = None) -> Page[TokenRecord]:
        """Tokens in the order in which they were made, with those that have ended."""
        (last,) = ("",) if after is None else place(after, str)
        rows = await self._ask(list_tokens, after=last, limit=validation.page(limit))
        return page_of(rows, limit, token_of, lambda row: (row.id,))

    async def get(self, id: str) -> TokenRecord:
        return token_of(await self._ask(find_token, id))

    @changing("tokens rotate")
    async def rotate(self, id: str, *, overlap: Duration = "1h", by: str = "") -> NewToken:
        """A token like this one in its place. The old one lasts for `overlap`, so that programs can change over."""
        old = await self.get(id)
        if old.state != "live":
            raise UsageError(f"token {id} is {old.state}: create a new one.")
        left = None if old.expires_at is None else old.expires_at - old.created_at
        new = await self.create(old.name, role=old.role, tenant=old.tenant, scopes=old.scopes, lasts=left, by=by)
        await self._ask(end_token, id, durations.microseconds(overlap))
        return new

    @changing("tokens revoke")
    async def revoke(self, id: str) -> TokenRecord:
        """End a token now, with the logins that were made with it. Doing it again does nothing."""
        return token_of(await self._ask(revoke_token, id))

    async def principal(self, secret: str) -> Principal | None:
        """Who shows this; None when it is not a token, or one that has ended."""
        if not secret.startswith(PREFIX) or len(secret) > 200:
            return None
        row = await self._ask(token_of_hash, hashed(secret))
        found = None if row is None else token_of(row)
        return None if found is None or found.state != "live" else principal_of(found)

    async def live(self, ids: Collection[str]) -> frozenset[str]:
        """Those of these tokens that have not ended."""
        return frozenset(row.id for row in await self._ask(live_tokens, list(ids)))

    async def any_live(self) -> bool:
        return await self._ask(any_live)


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def token_of(row: TokenRow) -> TokenRecord:
    return value_of(TokenRecord, row)


def principal_of(token: TokenRecord) -> Principal:
    return Principal(token.name, token.role, token.tenant, frozenset(cast(Sequence[str], token.scopes)), token.id)


async def add_token(tx: Transaction, values: Mapping[str, object]) -> TokenRow:
    row = await tx.one(TokensSql.add_token, **values)
    assert row is not None
    return row


@reading
async def list_tokens(tx: Transaction, *, after: str, limit: int) -> list[TokenRow]:
    return await tx.many(TokensSql.list_tokens, after=after, limit=limit)


@reading
async def find_token(tx: Transaction, id: str) -> TokenRow:
    row = await tx.one(TokensSql.find_token, id=id)
    if row is None:
        raise NotFound(f"there is no token {id} in this database.")
    return row


@reading
async def token_of_hash(tx: Transaction, hash: str) -> TokenRow | None:
    return await tx.one(TokensSql.token_of_hash, hash=hash)


@reading
async def live_tokens(tx: Transaction, ids: Sequence[str]) -> list[TokenRow]:
    return await tx.many(TokensSql.live_tokens, ids=ids)


@reading
async def any_live(tx: Transaction) -> bool:
    found = await tx.one(TokensSql.count_live)
    return found is not None and found.n > 0


async def end_token(tx: Transaction, id: str, within_us: int) -> None:
    await tx.one(TokensSql.end_token, id=id, within_us=within_us)


async def revoke_token(tx: Transaction, id: str) -> TokenRow:
    row = await tx.one(TokensSql.revoke_token, id=id)
    if row is None:
        return await find_token(tx, id)
    await tx.run(LoginsSql.end_logins_of, token=id)
    return row
