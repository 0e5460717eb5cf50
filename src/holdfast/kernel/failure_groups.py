"""FailureKey groups: failures that differ only in numbers and ids are one, with how many there were and when.

A tenant has no more than so many groups. Further messages are counted together, by kind and class of the error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import derived_id
from holdfast.kernel.statements import TallySql
from holdfast.kernel.tally_rows import FailureGroup, Failures, Finished

MOST = 1_000  # groups of one tenant
LOOK = 10_000  # groups that one question reads
OTHERS = "(other messages)"
_LONGEST = 200
_ID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=\w*\d)\w{8,}\b")
_CLASS = re.compile(r"(?:\w+\.)*([A-Z]\w*): (.*)")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


def pattern(message: str) -> str:
    """The first line of a message, without its numbers and ids."""
    line = next((line for line in message[: 10 * _LONGEST].splitlines() if line.strip()), "").strip()
    return _NUMBER.sub("<n>", _ID.sub("<id>", line))[:_LONGEST]


def alike(error: str | None, message: str | None) -> tuple[str, str]:
    """What failures of one group have in common: the class of what was raised, and the message without its numbers.

    A message begins with that class; without one, the runtime's own word for it is taken.
    """
    named = _CLASS.match(failure_pattern := pattern(message or ""))
    return (named[1], named[2]) if named else ((error or "")[:_LONGEST], failure_pattern)


class FailureKey(NamedTuple):
    """What decides to which group a failure belongs."""

    tenant: str
    kind: str
    error: str | None
    message: str | None


class FailureMatch(NamedTuple):
    """Failures of one group; None stands for any. `named` are groups that have a message, for all that have none."""

    subject: str
    error: str | None = None
    message: str | None = None
    named: Collection[str] = ()

    def has(self, failure: FailureKey) -> bool:
        """Whether a failure has what these have in common."""
        its = alike(failure.error, failure.message)
        if self.error not in (None, its[0]):
            return False
        if self.message == OTHERS:
            return _id(_made(self.subject, failure)) not in self.named
        return self.message in (None, its[1])


@reading
async def likeness(
    tx: Transaction, subject: str, error: str | None, message: str | None, among: Sequence[FailureKey]
) -> FailureMatch:
    """Which failures a group has. Those `among` which have other messages are all that have no group of their own."""
    if message != OTHERS:
        return FailureMatch(subject, error, message)
    ids = sorted({_id(_made(subject, each)) for each in among})
    return FailureMatch(
        subject, error, message, {each.name for each in await tx.many(TallySql.known_failures, ids=ids)}
    )


async def group_failures(tx: Transaction, subject: str, rows: Sequence[Finished]) -> None:
    """Count failures in their groups."""
    found: dict[str, Failures] = {}
    for row in rows:
        about = _made(subject, FailureKey(row.tenant, row.kind or row.source, row.error, row.message))
        _put(found, about._replace(id=_id(about), first_at=row.at, last_at=row.at, last_id=row.id))
    if not found:
        return
    known = {each.name for each in await tx.many(TallySql.known_failures, ids=sorted(found))}
    for tenant in sorted({each.tenant for each in found.values() if each.id not in known}):
        if await tx.one(TallySql.last_failure_group, tenant=tenant, skipped=MOST - 1) is not None:
            for each in [each for each in found.values() if each.tenant == tenant and each.id not in known]:
                del found[each.id]
                _put(found, each._replace(message=OTHERS, id=_id(each._replace(message=OTHERS))))
    await tx.run(TallySql.add_failures, failures=list(found.values()))


def _made(subject: str, failure: FailureKey) -> Failures:
    error, message = alike(failure.error, failure.message)
    return Failures("", subject, failure.tenant, failure.kind, error, message, 1, 0, 0, "")


def _id(group: Failures) -> str:
    return derived_id("failure", group.subject, group.tenant, group.kind, group.error, group.message)


def _put(found: dict[str, Failures], new: Failures) -> None:
    old = found.get(new.id)
    if old is None:
        found[new.id] = new
        return
    last = new if new.last_at >= old.last_at else old
    found[new.id] = last._replace(number=old.number + new.number, first_at=min(old.first_at, new.first_at))


@reading
async def list_failures(
    tx: Transaction, *, subject: str | None, kind: str | None, tenant: str | None, since: int, limit: int
) -> list[FailureGroup]:
    """The last ones first."""
    given = {"subject": subject, "kind": kind, "since": since, "cap": LOOK, "limit": limit}
    if tenant is None:
        return await tx.many(TallySql.failures, **given)
    return await tx.many(TallySql.failures_of, tenant=tenant, **given)


async def delete_failures(tx: Transaction, tenant: str) -> None:
    """Of one tenant."""
    await tx.run(TallySql.delete_failures_of, tenant=tenant)
