"""Keys in the store: who may connect, until the key is revoked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import NotFound, UsageError
from holdfast.kernel.database import Transaction, reading, single
from holdfast.resp.client import KeyPrincipal
from holdfast.resp.records import KeysSql, RespKeyRow


class StoredKey(NamedTuple):
    """A key as people see it: everything but the key."""

    name: str
    workers: tuple[str, ...]
    queues: tuple[str, ...] | None
    commands: tuple[str, ...] | None
    tenant: str
    created_at: int
    revoked_at: int | None


@single
async def add_key(tx: Transaction, principal: KeyPrincipal) -> None:
    """Store a principal; `UsageError` if its name has a key already."""
    row = await tx.one(
        KeysSql.add_key,
        name=principal.name,
        digest=principal.digest,
        workers=json.dumps(principal.workers),
        queues=_listed(principal.queues),
        commands=_listed(principal.commands),
        tenant=principal.tenant,
    )
    if row is None:
        raise UsageError(f"{principal.name} has a key already; revoke that first: holdfast resp keys revoke.")


@single
async def revoke_key(tx: Transaction, name: str) -> None:
    if await tx.one(KeysSql.revoke_key, name=name) is None:
        raise NotFound(f"there is no valid key of {name!r}; `holdfast resp keys ls` shows them.")


@reading
async def find_keys(tx: Transaction, digest: str) -> list[KeyPrincipal]:
    return [_principal(row) for row in await tx.many(KeysSql.find_keys, digest=digest)]


@reading
async def list_keys(tx: Transaction, *, all: bool) -> list[KeyPrincipal]:
    return [_principal(row) for row in await tx.many(KeysSql.list_keys, all=int(all))]


@reading
async def show_keys(tx: Transaction, *, all: bool) -> list[StoredKey]:
    rows = await tx.many(KeysSql.list_keys, all=int(all))
    return [
        StoredKey(
            row.name,
            tuple(json.loads(row.workers)),
            _names(row.queues),
            _names(row.commands),
            row.tenant,
            row.created_at,
            row.revoked_at,
        )
        for row in rows
    ]


def _principal(row: RespKeyRow) -> KeyPrincipal:
    workers = tuple(json.loads(row.workers))
    queues, commands = _names(row.queues), _names(row.commands)
    return KeyPrincipal(row.name, row.digest, workers, queues, commands, row.tenant, stored=True)


def _listed(names: Sequence[str] | None) -> str | None:
    return None if names is None else json.dumps(names)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))
