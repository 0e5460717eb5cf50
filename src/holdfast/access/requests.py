"""Answered requests: a request that names a key is done once, and the same request again gets the same answer.

A key is taken before the request is done. If its program dies meanwhile, the same request may take it again.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import durations
from holdfast.access.rows import RequestKeyRow
from holdfast.access.statements import RequestsSql
from holdfast.errors import RequestConflict, RequestUnderWay
from holdfast.handles import View
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction

_PATIENCE_US = durations.microseconds("1m")
_AGE_US = durations.microseconds("7d")


class AnsweredRequest(NamedTuple):
    """What was answered before, as JSON."""

    status: int
    answer: str


class Requests(View):
    """`hf.access.requests`."""

    async def take(self, owner: str, key: str, digest: str) -> AnsweredRequest | None:
        """None: do the request, then call `answered` or `free`. `RequestConflict`: the key was for another one."""
        return await self._ask(take_request, owner, codec.stored_key(key), digest)

    async def answered(self, owner: str, key: str, status: int, answer: str) -> None:
        await self._ask(answer_request, owner, codec.stored_key(key), status, answer)

    async def free(self, owner: str, key: str) -> None:
        """The request was refused: its key may be used again."""
        await self._ask(free_request, owner, codec.stored_key(key))


async def take_request(tx: Transaction, owner: str, key: str, digest: str) -> AnsweredRequest | None:
    named = {"owner": owner, "key": key}
    await tx.run(RequestsSql.prune_requests, age_us=_AGE_US)
    if await tx.one(RequestsSql.take_request, **named, digest=digest, patience_us=_PATIENCE_US) is not None:
        return None
    there: RequestKeyRow | None = await tx.one(RequestsSql.find_request, **named)
    if there is None or there.digest != digest:
        raise RequestConflict(key)
    if there.status is None or there.answer is None:
        raise RequestUnderWay(key)
    return AnsweredRequest(there.status, there.answer)


async def answer_request(tx: Transaction, owner: str, key: str, status: int, answer: str) -> None:
    await tx.run(RequestsSql.answer_request, owner=owner, key=key, status=status, answer=answer)


async def free_request(tx: Transaction, owner: str, key: str) -> None:
    await tx.run(RequestsSql.free_request, owner=owner, key=key)
