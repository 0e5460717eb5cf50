"""The audit: what was changed from outside, by whom, as rows that are only added.

Each row has a hash over its own content and the hash of the row before it. So a row that somebody changes or removes
afterwards breaks the chain, and `verify` names the first row that does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from holdfast import validation
from holdfast.access.principals import Principal, os_user
from holdfast.access.records import AuditHead, AuditRow, AuditSql
from holdfast.client.core import Core
from holdfast.client.handles import View
from holdfast.errors import HoldfastError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading, unbound
from holdfast.observe import without_audit
from holdfast.validation import MOST
from holdfast.values import Page, Stored, page_of, place, value_of

# Rows of the audit that are written at the same time share a commit.
#
# Each row has a hash over the one before it, so they are written one after the other, and each waited for the commit
# of
# the one before. Now one write is under way; rows that come meanwhile travel together in the next. Who writes a row
# still
# waits until it is stored: an intent before anything is done, an outcome before it is told.


AuditValues = Mapping[str, Any]
Store = Callable[[Sequence[AuditValues]], Awaitable[Sequence[int]]]

_TOGETHER = 200


class AuditCall(NamedTuple):
    row: AuditValues
    number: asyncio.Future[int]


class AuditWriter:
    def __init__(self, store: Store) -> None:
        """`store` writes rows in one transaction, and returns their numbers."""
        self._store = store
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AuditCall]] = WeakKeyDictionary()
        self._writing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    async def write(self, row: AuditValues) -> int:
        """Write a row; returns its number. A caller that is cancelled has written it nevertheless, or will have."""
        loop = asyncio.get_running_loop()
        call = AuditCall(row, loop.create_future())
        self._waiting.setdefault(loop, []).append(call)
        if loop not in self._writing:
            with unbound():  # what a tenant does is written where tenants cannot read
                self._writing[loop] = loop.create_task(self._write_all(loop))
        return await call.number

    async def _write_all(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while group := self._waiting[loop][:_TOGETHER]:
                del self._waiting[loop][:_TOGETHER]
                await self._write_some(group)
        finally:
            del self._writing[loop]
            for call in self._waiting.pop(loop, ()):
                call.number.cancel()  # the loop is being closed

    async def _write_some(self, group: Sequence[AuditCall]) -> None:
        try:
            numbers = await self._store([call.row for call in group])
        except Exception as problem:  # noqa: BLE001  the waiting callers must get the error, whatever it is
            for call in group:
                if not call.number.done():
                    call.number.set_exception(problem)
            return
        finally:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                for call in group:
                    call.number.cancel()
        for call, number in zip(group, numbers, strict=True):
            if not call.number.done():
                call.number.set_result(number)


Phase = Literal["intent", "outcome", "done"]
_CAP = 64 * 1024
_VERIFIED_TOGETHER = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One row of the audit. An "outcome" is `about` the row with the intent; `status` is that of the answer."""

    seq: int
    at: datetime
    actor: str
    role: str
    tenant: str | None
    phase: Phase
    about: int | None
    action: str
    subject: str
    status: int | None
    detail: Stored
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCheck:
    """How many rows were looked at, and the number of the first that does not fit; None: all do."""

    rows: int
    broken: int | None
    problem: str = ""


class Audit(View):
    """`hf.access.audit`."""

    def __init__(self, app: Core) -> None:
        super().__init__(app)
        self._writer = AuditWriter(self._store)

    async def _store(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return await self._ask(add_entries, rows)

    async def add(
        self,
        by: Principal,
        action: str,
        subject: str,
        *,
        phase: Phase = "done",
        about: int | None = None,
        status: int | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> int:
        """Write a row; returns its number."""
        try:
            text = codec.encode(dict(detail or {}), what="the details", cap=_CAP)
        except HoldfastError:  # what was sent may be too large, or not storable: that it was sent is written
            text = '{"left_out":true}'
        row = {
            "actor": codec.clip(by.name, 512),
            "role": by.role,
            "tenant": by.tenant,
            "phase": phase,
            "about": about,
            "action": action,
            "subject": codec.clip(subject, 2_000),
            "status": status,
            "detail": text,
        }
        return await self._writer.write(row)

    @asynccontextmanager
    async def recording(
        self, by: Principal | str, action: str, subject: str, *, detail: Mapping[str, Any] | None = None
    ) -> AsyncIterator[None]:
        """Around a change: what is to be done is written before it, and what came of it after.

        `async with hf.access.audit.recording("ann", "pause", "mail"): await hf.queues.pause("mail")`. A name alone is
        that of an admin: a program that has the database may do everything.
        """
        who = by if isinstance(by, Principal) else Principal(by, "admin")
        intent = await self.add(who, action, subject, phase="intent", detail=detail)
        said: dict[str, str] = {"error": "Interrupted"}
        try:
            with without_audit():
                yield
            said = {}
        except Exception as problem:
            said = {"error": type(problem).__name__}
            raise
        finally:
            await self.add(who, action, subject, phase="outcome", about=intent, detail=said)

    def by_program(self, action: str, subject: str, by: str) -> AbstractAsyncContextManager[None]:
        """Around a change that a program makes by itself: by whom it says, or else the user who runs it."""
        return self.recording(by or f"{os_user()} (python)", action, subject)

    async def list(self, *, limit: int = 100, after: str | None = None) -> Page[AuditRecord]:
        """The newest first."""
        (before,) = (2**62,) if after is None else place(after, int)
        rows = await self._ask(list_entries, before=before, limit=validation.page(limit))
        return page_of(rows, limit, lambda row: value_of(AuditRecord, row), lambda row: (row.seq,))

    async def verify(self) -> AuditCheck:
        """Whether every row is as it was written, and none is missing."""
        seq, before = 0, ""
        while True:
            rows = await self._ask(entries_after, seq, _VERIFIED_TOGETHER)
            for row in rows:
                if row.seq != seq + 1:
                    return AuditCheck(rows=seq, broken=seq + 1, problem=f"row {seq + 1} is missing")
                if row.hash != chained(before, row):
                    return AuditCheck(rows=seq, broken=row.seq, problem=f"row {row.seq} was changed")
                seq, before = row.seq, row.hash
            if len(rows) < _VERIFIED_TOGETHER:
                break
        head = await self._ask(find_head)
        if (head.seq, head.hash) != (seq, before):
            return AuditCheck(rows=seq, broken=seq + 1, problem=f"rows after {seq} are missing: there were {head.seq}")
        return AuditCheck(rows=seq, broken=None)


def chained(before: str, row: AuditRow) -> str:
    """The hash of a row that stands behind the one with that hash."""
    content = {**row._asdict(), "hash": before}
    return codec.digest(codec.encode(content, what="a row of the audit", cap=2 * _CAP))


async def add_entries(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Write rows behind the last one; returns their numbers."""
    head = await tx.one(AuditSql.lock_head)
    if head is None:
        await tx.run(AuditSql.add_head)
        head = await tx.one(AuditSql.lock_head)
        assert head is not None
    entries: list[AuditRow] = []
    last = head.hash
    for seq, row in enumerate(rows, head.seq + 1):
        entry = AuditRow(seq=seq, at=head.now, hash="", **row)
        last = chained(last, entry)
        entries.append(entry._replace(hash=last))
    await tx.run(AuditSql.add_entries, entries=entries, seq=entries[-1].seq, hash=last)
    return [entry.seq for entry in entries]


async def find_head(tx: Transaction) -> AuditHead:
    return await tx.one(AuditSql.lock_head) or AuditHead(0, "", 0)


@reading
async def list_entries(tx: Transaction, *, before: int = MOST, limit: int) -> list[AuditRow]:
    return await tx.many(AuditSql.list_entries, before=before, limit=limit)


@reading
async def entries_after(tx: Transaction, after: int, limit: int) -> list[AuditRow]:
    return await tx.many(AuditSql.entries_after, after=after, limit=limit)
