"""Keys of any kind: DEL, EXISTS, TYPE, TTL, EXPIRE, KEYS and SCAN, over plain data and live views."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from holdfast.resp import keyspace, views
from holdfast.resp.call import CallRefused, Command, CommandCall, integer, name_of, space_of
from holdfast.resp.frames import Members, Reply, Simple

# Patterns of keys, as KEYS and SCAN take them: * ? [abc] [^a-c] and backslashes.


def glob(pattern: bytes) -> re.Pattern[bytes]:
    """What matches the same keys as Redis would. A star never gives back what the parts after it have found, so that no
    pattern costs more than its length times that of the key."""
    first, *others = _between_stars(pattern)
    if not others:
        return re.compile(first, re.S)
    *middle, last = others
    return re.compile(first + b"".join(b"(?>.*?" + part + b")" for part in middle if part) + b".*" + last, re.S)


def _between_stars(pattern: bytes) -> list[bytes]:
    """Expressions of one length each."""
    parts, at = [b""], 0
    while at < len(pattern):
        each = pattern[at : at + 1]
        at += 1
        if each == b"*":
            parts.append(b"")
        elif each == b"?":
            parts[-1] += b"."
        elif each == b"[":
            part, at = _class(pattern, at)
            parts[-1] += part
        else:
            if each == b"\\" and at < len(pattern):
                each = pattern[at : at + 1]
                at += 1
            parts[-1] += re.escape(each)
    return parts


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The characters up to the closing bracket, or to the end."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    ranges: list[tuple[int, int]] = []
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            ranges.append((pattern[at], pattern[at]))
            at += 1
        elif at + 2 < len(pattern) and pattern[at + 1 : at + 2] == b"-":
            ranges.append((min(pattern[at], pattern[at + 2]), max(pattern[at], pattern[at + 2])))
            at += 3
        else:
            ranges.append((pattern[at], pattern[at]))
            at += 1
    inside = b"".join(re.escape(bytes([low])) + b"-" + re.escape(bytes([high])) for low, high in ranges)
    empty = b"." if negated else b"(?!)"
    return (b"[" + b"^" * negated + inside + b"]" if inside else empty), at + 1


def literal_begin(pattern: bytes) -> bytes:
    """What everything begins with that matches."""
    return re.split(rb"[*?\[\\]", pattern, maxsplit=1)[0]


_MOST = 10_000  # keys that KEYS answers with
_MOST_COUNTED = 100_000
_PAGE = 1_000
_AT_ONCE = 50  # keys that are compared before others have their turn
_LONGEST_PATTERN = 2_048  # a key of 1,024 bytes, each behind a backslash


async def delete(call: CommandCall) -> Reply:
    names = [name_of(call, at) for at in range(len(call.arguments))]
    return sum([await call.gateway.transact(keyspace.remove, name) for name in names])


async def exists(call: CommandCall) -> Reply:
    return sum([await _kind(call, at) is not None for at in range(len(call.arguments))])


async def type(call: CommandCall) -> Reply:
    return Simple(await _kind(call, 0) or "none")


async def _kind(call: CommandCall, at: int) -> str | None:
    if views.is_view(call.arguments[at]):
        return (await views.find(call, call.arguments[at])).kind
    found = await call.gateway.transact(keyspace.find, name_of(call, at))
    return found.kind if found is not None else None


async def ttl(call: CommandCall) -> Reply:
    left = await _left(call)
    return left if left < 0 else (left + 500_000) // 1_000_000


async def pttl(call: CommandCall) -> Reply:
    left = await _left(call)
    return left if left < 0 else left // 1_000


async def _left(call: CommandCall) -> int:
    """Microseconds until it expires; -1: it does not, -2: it is not there."""
    if views.is_view(call.arguments[0]):
        return (await views.find(call, call.arguments[0])).left_us
    found = await call.gateway.transact(keyspace.find, name_of(call))
    if found is None:
        return -2
    return -1 if found.expires_at is None else found.expires_at - found.now


async def expire(call: CommandCall) -> Reply:
    return await _expire(call, 1_000_000)


async def pexpire(call: CommandCall) -> Reply:
    return await _expire(call, 1_000)


async def _expire(call: CommandCall, unit: int) -> Reply:
    name, number = name_of(call), integer(call.arguments[1])
    if abs(number) * unit > keyspace.NEVER:
        raise CallRefused(f"invalid expire time in '{call.command.lower()}' command")
    if number <= 0:
        return int(await call.gateway.transact(keyspace.remove, name))
    return int(await call.gateway.transact(keyspace.expire, name, number * unit, after=True))


async def persist(call: CommandCall) -> Reply:
    return int(await call.gateway.transact(keyspace.expire, name_of(call), None))


async def smembers(call: CommandCall) -> Reply:
    if not views.is_view(call.arguments[0]):
        await call.gateway.transact(keyspace.find, name_of(call), "set")  # plain data has no sets
        return Members([])
    return (await views.find(call, call.arguments[0])).as_set()


def _pattern(given: bytes) -> re.Pattern[bytes]:
    if len(given) > _LONGEST_PATTERN:
        raise CallRefused(f"a pattern has at most {_LONGEST_PATTERN} bytes")
    return glob(given)


async def _fitting(wanted: re.Pattern[bytes], keys: Iterable[bytes]) -> list[bytes]:
    """Others have their turn after every few keys: a long pattern takes milliseconds for each."""
    found = []
    for number, key in enumerate(keys):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if wanted.fullmatch(key):
            found.append(key)
    return found


async def keys(call: CommandCall) -> Reply:
    wanted = _pattern(call.arguments[0])
    found = await _fitting(wanted, await views.names(call, literal_begin(call.arguments[0])))
    place = 0
    while True:
        rows = await call.gateway.transact(keyspace.list_keys, space_of(call), place=place, limit=_PAGE)
        found += await _fitting(wanted, [row.key for row in rows])
        if len(found) > _MOST:
            raise CallRefused(f"more than {_MOST} keys match: use SCAN")
        if len(rows) < _PAGE:
            return found
        place = rows[-1].place + 1


async def dbsize(call: CommandCall) -> Reply:
    return await call.gateway.transact(keyspace.count_keys, space_of(call), most=_MOST_COUNTED)


async def scan(call: CommandCall) -> Reply:
    cursor, rest = integer(call.arguments[0]), list(call.arguments[1:])
    wanted, begin, count, kind = None, b"", 10, None
    while rest:
        option = rest.pop(0).upper()
        if option == b"MATCH" and rest:
            wanted, begin = _pattern(rest[0]), literal_begin(rest.pop(0))
        elif option == b"COUNT" and rest:
            count = integer(rest.pop(0))
        elif option == b"TYPE" and rest:
            kind = rest.pop(0).lower().decode(errors="replace")
        else:
            raise CallRefused("syntax error")
    if cursor < 0 or count < 1:
        raise CallRefused("syntax error" if count < 1 else "invalid cursor")
    found, place = await _from(call, begin, cursor, min(count, _PAGE))
    kept = [key for key, its in found if kind in (None, its)]
    return [str(place), kept if wanted is None else await _fitting(wanted, kept)]


async def _from(call: CommandCall, begin: bytes, place: int, count: int) -> tuple[list[tuple[bytes, str]], int]:
    """Keys from a place on, with their kinds, and the place to continue at: 0 when there are no more."""
    rows = await call.gateway.transact(keyspace.list_keys, space_of(call), place=place, limit=count + 1)
    end = rows[count].place if len(rows) > count else 1 << 48
    seen = [(row.key, row.kind) for row in rows if row.place < end]
    for key in await views.names(call, begin):
        if place <= keyspace.place_of(key) < end:
            seen.append((key, views.kind_of(key)))
    return seen, 0 if end == 1 << 48 else end


_ONE, _ALL = (1, 1, 1), (1, -1, 1)
COMMANDS = (
    Command("DEL", "key [key ...]", "Remove keys.", delete, keys=_ALL, writes=True),
    Command("EXISTS", "key [key ...]", "Count which of these are there.", exists, keys=_ALL),
    Command("TYPE", "key", "Say what kind of value a key has.", type, keys=_ONE),
    Command("TTL", "key", "Seconds until a key expires: -1 never, -2 it is not there.", ttl, keys=_ONE),
    Command("PTTL", "key", "TTL in milliseconds.", pttl, keys=_ONE),
    Command("EXPIRE", "key seconds", "Let a key expire.", expire, keys=_ONE, writes=True),
    Command("PEXPIRE", "key milliseconds", "EXPIRE in milliseconds.", pexpire, keys=_ONE, writes=True),
    Command("PERSIST", "key", "Let a key never expire.", persist, keys=_ONE, writes=True),
    Command("SMEMBERS", "key", "Read a set, which only live views have.", smembers, keys=_ONE),
    Command("KEYS", "pattern", "List keys that match a pattern.", keys),
    Command("DBSIZE", "", "Count the keys of plain data, up to 100,000.", dbsize),
    Command("SCAN", "cursor [MATCH pattern] [COUNT count] [TYPE type]", "List keys step by step.", scan),
)
