"""Claim: take jobs from the routes a worker serves, in their order, each under a new token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.rows import Lease
from holdfast.kernel.statements import CrowdSql, JobsSql


@single
async def claim(tx: Transaction, worker: int, routes: Sequence[int], n: int, ttl_us: int) -> list[Lease]:
    """At most `n` jobs. A short answer does not mean that nothing is left: ask `heads`."""
    if len(routes) == 1:
        leases = await tx.many(JobsSql.claim_one, worker=worker, route=routes[0], n=n, ttl_us=ttl_us)
    else:
        leases = await tx.many(JobsSql.claim, worker=worker, routes=routes, n=n, ttl_us=ttl_us)
    leases.sort(key=attrgetter("place"))
    return leases


@reading
async def heads(tx: Transaction, routes: Sequence[int]) -> list[int]:
    """Those of the routes that have something to claim now, the most urgent and then the oldest head first."""
    return [row.route for row in await tx.many(JobsSql.heads, routes=routes)]


# One worker's look at the store, told to all of a crowd.
#
# The note `looked` says that somebody has looked for everybody at a moment of the store's clock, and on which routes
# something was left to claim. It is one note: a worker that learns of a poll also learns what it found.


LOOKED = "looked"
MOST_ROUTES = 300  # that one note names: it must fit into a notification
_WALKED = 1_000  # routes that one look goes through for those, paused ones too
_MANY = "many"  # in place of more


class SharedLook(NamedTuple):
    """A look that somebody else made, for everybody."""

    at: int  # the store's time
    leased: bool  # jobs run, so that a death is to be seen soon


class LookNote(NamedTuple):
    """What a note says. It may combine the looks of several workers."""

    looks: list[SharedLook]
    routes: list[int]  # on which there is something to claim
    many: bool  # on more than could be named


def looked_note(look: SharedLook, routes: Iterable[int] | None) -> str:
    """`routes`: None when there are more than a note should name."""
    named = [_MANY] if routes is None else [str(route) for route in routes]
    return f"{LOOKED} {','.join([f'{look.at}:{int(look.leased)}', *named])}"


def read_note(names: str) -> LookNote:
    """Read what follows the subject; what is not understood is left out."""
    parts = names.split(",")
    stamps = [(at, leased) for at, colon, leased in (part.partition(":") for part in parts) if colon]
    looks = [SharedLook(int(at), leased == "1") for at, leased in stamps if at.isdecimal()]
    return LookNote(looks, [int(part) for part in parts if part.isdecimal()], _MANY in parts)


@reading
async def tell_look(tx: Transaction, look: SharedLook) -> None:
    """Tell everybody of a look that was made for them, and of the routes on which something is left."""
    rows = await tx.many(CrowdSql.ready_routes, most=_WALKED)
    routes = [row.id for row in rows if not row.paused]
    too_many = len(rows) == _WALKED or len(routes) > MOST_ROUTES
    await tx.hint(looked_note(look, None if too_many else routes))
