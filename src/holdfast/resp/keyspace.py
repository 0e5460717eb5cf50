"""Plain data in the store, as Redis has it. Each operation is one transaction that holds the key's row.

A key has one kind until it is removed, and what has no parts left is removed. What has expired is not there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import StoreRefused
from holdfast.kernel.database import Transaction, reading
from holdfast.resp.records import KeyspaceSql, PartRow, ValueRow

MOST_FIELDS = 10_000
NEVER = 1 << 62
_MIDDLE = 1 << 63  # the place of a list's first element, as its eight bytes count


class WrongKind(StoreRefused):
    """The key has a value of another kind."""


class TooManyParts(StoreRefused):
    """The value has as many parts as it may have."""


class SpacedKey(NamedTuple):
    """A key in the keyspace of one tenant."""

    space: str
    key: bytes


def place_of(key: bytes) -> int:
    """Where SCAN meets the key: 48 bits, because cursors are numbers that every client can hold."""
    return int.from_bytes(hashlib.sha256(key).digest()[:6])


def _named(name: SpacedKey) -> dict[str, object]:
    return {"space": name.space, "key": name.key}


async def _held(tx: Transaction, name: SpacedKey, kind: str | None, *, create: bool = False) -> ValueRow | None:
    """The value, with its row locked; None if there is none. `create`: an empty one is made."""
    if create:
        await tx.run(KeyspaceSql.add_value, **_named(name), place=place_of(name.key), kind=kind)
    row = await tx.one(KeyspaceSql.lock_value, **_named(name))
    if row is not None and row.expires_at is not None and row.expires_at <= row.now:
        await tx.run(KeyspaceSql.remove_parts, **_named(name))
        if not create:
            await tx.run(KeyspaceSql.remove_value, **_named(name))
            return None
        await tx.run(KeyspaceSql.set_value, **_named(name), kind=kind, value=None, expires_at=None)
        return row._replace(kind=kind or row.kind, value=None, expires_at=None)
    return _of_kind(row, kind)


def _of_kind(row: ValueRow | None, kind: str | None) -> ValueRow | None:
    if row is not None and kind is not None and row.kind != kind:
        raise WrongKind("Operation against a key holding the wrong kind of value")
    return row


async def _extent(tx: Transaction, name: SpacedKey) -> tuple[int, bytes | None, bytes | None]:
    found = await tx.one(KeyspaceSql.measure_parts, **_named(name))
    assert found is not None
    return found


async def _forget_if_empty(tx: Transaction, name: SpacedKey) -> None:
    if (await _extent(tx, name))[0] == 0:
        await tx.run(KeyspaceSql.remove_value, **_named(name))


# Any kind.


@reading
async def find(tx: Transaction, name: SpacedKey, kind: str | None = None) -> ValueRow | None:
    return _of_kind(await tx.one(KeyspaceSql.find_value, **_named(name)), kind)


async def remove(tx: Transaction, name: SpacedKey) -> bool:
    if await _held(tx, name, None) is None:
        return False
    await tx.run(KeyspaceSql.remove_parts, **_named(name))
    await tx.run(KeyspaceSql.remove_value, **_named(name))
    return True


async def expire(tx: Transaction, name: SpacedKey, at: int | None, *, after: bool = False) -> bool:
    """Let it expire at a moment, or that long after now; None: never. False if it is not there, or never expires."""
    row = await _held(tx, name, None)
    if row is None or (at is None and row.expires_at is None):
        return False
    moment = None if at is None else min(row.now + at if after else at, NEVER)
    await tx.run(KeyspaceSql.set_expiry, **_named(name), expires_at=moment)
    return True


@reading
async def list_keys(tx: Transaction, space: str, *, place: int, limit: int) -> list[ValueRow]:
    return await tx.many(KeyspaceSql.list_keys, space=space, place=place, limit=limit)


@reading
async def count_keys(tx: Transaction, space: str, *, most: int) -> int:
    """How many keys there are; no more are counted than that."""
    row = await tx.one(KeyspaceSql.count_keys, space=space, most=most)
    return row.keys if row is not None else 0


async def prune(tx: Transaction, *, limit: int) -> int:
    """Remove what has expired."""
    expired = await tx.many(KeyspaceSql.expired_keys, limit=limit)
    for each in sorted(expired):
        await _held(tx, SpacedKey(*each), None)
    return len(expired)


async def erase(tx: Transaction, space: str, *, limit: int) -> int:
    """Remove some of what a space has; how many keys."""
    found = await tx.many(KeyspaceSql.keys_in, space=space, limit=limit)
    for each in found:
        name = SpacedKey(*each)
        await tx.one(KeyspaceSql.lock_value, **_named(name))
        await tx.run(KeyspaceSql.remove_parts, **_named(name))
        await tx.run(KeyspaceSql.remove_value, **_named(name))
    return len(found)


# Strings.


class KeyChange(NamedTuple):
    """What SET is asked for. `keeps`: the time at which it expires stays."""

    value: bytes
    expires: int | None = None
    after: bool = False
    only_new: bool = False
    only_old: bool = False
    keeps: bool = False


async def set_string(tx: Transaction, name: SpacedKey, change: KeyChange) -> tuple[bool, ValueRow | None]:
    """Store it; whether that was done, and what was there before."""
    await tx.run(KeyspaceSql.add_value, **_named(name), place=place_of(name.key), kind="string")
    row = await tx.one(KeyspaceSql.lock_value, **_named(name))
    assert row is not None
    fresh = row.kind == "string" and row.value is None
    before = None if fresh or (row.expires_at is not None and row.expires_at <= row.now) else row
    if (change.only_new and before is not None) or (change.only_old and before is None):
        if before is None:
            await tx.run(KeyspaceSql.remove_value, **_named(name))
        return False, before
    await tx.run(KeyspaceSql.remove_parts, **_named(name))
    expires = row.expires_at if change.keeps and before is not None else change.expires
    if change.after and change.expires is not None:
        expires = row.now + change.expires
    await tx.run(KeyspaceSql.set_value, **_named(name), kind="string", value=change.value, expires_at=expires)
    return True, before


# Hashes.


async def put_fields(tx: Transaction, name: SpacedKey, fields: dict[bytes, bytes]) -> int:
    """Store fields; how many were not there before."""
    await _held(tx, name, "hash", create=True)
    count = (await _extent(tx, name))[0]
    added = 0
    for field, value in fields.items():
        added += await tx.one(KeyspaceSql.find_part, **_named(name), part=field) is None
        if count + added > MOST_FIELDS:
            raise TooManyParts(f"a hash has at most {MOST_FIELDS} fields")
        await tx.run(KeyspaceSql.put_part, **_named(name), part=field, score=None, value=value)
    return added


async def add_to_field(tx: Transaction, name: SpacedKey, field: bytes, amount: int) -> int | None:
    """Add to a number; None if it is none, or too large."""
    await _held(tx, name, "hash", create=True)
    part = await tx.one(KeyspaceSql.find_part, **_named(name), part=field)
    number = 0 if part is None else whole_number(part.value or b"")
    if number is None or not -(1 << 63) <= number + amount < 1 << 63:
        await _forget_if_empty(tx, name)
        return None
    await tx.run(KeyspaceSql.put_part, **_named(name), part=field, score=None, value=b"%d" % (number + amount))
    return number + amount


def whole_number(text: bytes) -> int | None:
    """A number as Redis reads it: no sign but minus, no zeros before it, 64 bits."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if b"%d" % number == text and -(1 << 63) <= number < 1 << 63 else None


# Sorted sets.


async def put_scores(tx: Transaction, name: SpacedKey, scores: dict[bytes, float]) -> int:
    """Store members with their scores; how many were not there before."""
    await _held(tx, name, "zset", create=True)
    added = 0
    for member, score in scores.items():
        added += await tx.one(KeyspaceSql.find_part, **_named(name), part=member) is None
        await tx.run(KeyspaceSql.put_part, **_named(name), part=member, score=score, value=None)
    return added


@reading
async def scores(
    tx: Transaction, name: SpacedKey, lowest: float = float("-inf"), highest: float = float("inf")
) -> list[PartRow]:
    """The members with scores in this range, lowest first."""
    if await find(tx, name, "zset") is None:
        return []
    return await tx.many(KeyspaceSql.list_scores, **_named(name), lowest=lowest, highest=highest)


# What has parts.


@reading
async def part(tx: Transaction, name: SpacedKey, kind: str, part: bytes) -> PartRow | None:
    if await find(tx, name, kind) is None:
        return None
    return await tx.one(KeyspaceSql.find_part, **_named(name), part=part)


@reading
async def parts(tx: Transaction, name: SpacedKey, kind: str, *, skipped: int = 0, limit: int = NEVER) -> list[PartRow]:
    if await find(tx, name, kind) is None:
        return []
    return await tx.many(KeyspaceSql.list_parts, **_named(name), skipped=skipped, limit=limit)


@reading
async def count(tx: Transaction, name: SpacedKey, kind: str) -> int:
    return 0 if await find(tx, name, kind) is None else (await _extent(tx, name))[0]


async def remove_parts(tx: Transaction, name: SpacedKey, kind: str, parts: Sequence[bytes]) -> int:
    """Remove fields or members; how many were there."""
    if await _held(tx, name, kind) is None:
        return 0
    removed = 0
    for each in dict.fromkeys(parts):
        removed += await tx.one(KeyspaceSql.remove_part, **_named(name), part=each) is not None
    await _forget_if_empty(tx, name)
    return removed


# Lists.


async def push(tx: Transaction, name: SpacedKey, values: Sequence[bytes], *, left: bool) -> int:
    """Add values at an end, one after the other; how many there are then."""
    await _held(tx, name, "list", create=True)
    count, first, last = await _extent(tx, name)
    end = first if left else last
    at = _MIDDLE if end is None else _place(end) + (-1 if left else 1)
    for each in values:
        await tx.run(KeyspaceSql.put_part, **_named(name), part=struct.pack(">Q", at), score=None, value=each)
        at += -1 if left else 1
    return count + len(values)


async def pop(tx: Transaction, name: SpacedKey, *, left: bool) -> bytes | None:
    if await _held(tx, name, "list") is None:
        return None
    _, first, last = await _extent(tx, name)
    end = first if left else last
    if end is None:
        return None
    taken = await tx.one(KeyspaceSql.remove_part, **_named(name), part=end)
    await _forget_if_empty(tx, name)
    return taken.value if taken is not None else None


async def move(tx: Transaction, source: SpacedKey, target: SpacedKey) -> bytes | None:
    """Take from the right of one list, and put it at the left of another or of the same one."""
    found = {each: await _held(tx, each, None) for each in sorted({source, target})}  # in this order: no deadlock
    if _of_kind(found[source], "list") is None:
        return None
    _of_kind(found[target], "list")
    value = await pop(tx, source, left=False)
    if value is not None:
        await push(tx, target, [value], left=True)
    return value


async def remove_elements(tx: Transaction, name: SpacedKey, count: int, value: bytes) -> int:
    """Remove elements that are equal to this: the first `count`, the last if it is negative, all if it is 0."""
    if await _held(tx, name, "list") is None:
        return 0
    rows = await tx.many(KeyspaceSql.list_parts, **_named(name), skipped=0, limit=NEVER)
    equal = [row.part for row in rows if row.value == value]
    chosen = equal[:count] if count > 0 else equal[count:] if count < 0 else equal
    for each in chosen:
        await tx.one(KeyspaceSql.remove_part, **_named(name), part=each)
    await _forget_if_empty(tx, name)
    return len(chosen)


def _place(part: bytes) -> int:
    (place,) = struct.unpack(">Q", part)
    return int(place)
