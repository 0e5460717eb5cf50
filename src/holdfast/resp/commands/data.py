"""SET and GET. GET of a documented key reads a live view."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.resp import keyspace, views
from holdfast.resp.call import CallRefused, Command, CommandCall, integer, name_of, score
from holdfast.resp.commands import published
from holdfast.resp.frames import OK, Pairs, Reply, Score
from holdfast.resp.keyspace import KeyChange
from holdfast.resp.records import PartRow

_UNITS = {b"EX": (1_000_000, True), b"PX": (1_000, True), b"EXAT": (1_000_000, False), b"PXAT": (1_000, False)}
_LONGEST = 315_360_000_000_000  # microseconds of ten years


async def set(call: CommandCall) -> Reply:
    said = await published.put(call)
    if said is not None:
        return said
    name, rest = name_of(call), list(call.arguments[2:])
    change, returns = KeyChange(call.arguments[1]), False
    while rest:
        option = rest.pop(0).upper()
        if option in _UNITS and rest and change.expires is None and not change.keeps:
            change = _expiring(call, change, option, rest.pop(0))
        elif option == b"NX" and not change.only_old:
            change = change._replace(only_new=True)
        elif option == b"XX" and not change.only_new:
            change = change._replace(only_old=True)
        elif option == b"KEEPTTL" and change.expires is None:
            change = change._replace(keeps=True)
        elif option == b"GET":
            returns = True
        else:
            raise CallRefused("syntax error")
    if returns:
        await call.gateway.transact(keyspace.find, name, "string")  # another kind is refused
    done, before = await call.gateway.transact(keyspace.set_string, name, change)
    if returns:
        return before.value if before is not None else None
    return OK if done else None


def _expiring(call: CommandCall, change: KeyChange, option: bytes, value: bytes) -> KeyChange:
    unit, after = _UNITS[option]
    number = integer(value)
    if number <= 0 or (after and number * unit > _LONGEST):
        raise CallRefused(f"invalid expire time in '{call.command.lower()}' command")
    return change._replace(expires=min(number * unit, keyspace.NEVER), after=after)


async def get(call: CommandCall) -> Reply:
    if views.is_view(call.arguments[0]):
        return await published.read(call)
    found = await call.gateway.transact(keyspace.find, name_of(call), "string")
    return found.value if found is not None else None


COMMANDS = (
    Command(
        "SET",
        "key value [EX seconds] [PX milliseconds] [EXAT seconds] [PXAT milliseconds] [KEEPTTL] [NX] [XX] [GET] [...]",
        "Store a string.",
        set,
        keys=(1, 1, 1),
        writes=True,
    ),
    Command("GET", "key", "Read a string, or a live view.", get, keys=(1, 1, 1)),
)


# Hashes: fields with values. HGETALL of a documented key reads a live view.


async def hset(call: CommandCall) -> Reply:
    pairs = call.arguments[1:]
    if len(pairs) % 2:
        raise CallRefused("wrong number of arguments for 'hset' command")
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return await call.gateway.transact(keyspace.put_fields, name_of(call), fields)


async def hget(call: CommandCall) -> Reply:
    found = await call.gateway.transact(keyspace.part, name_of(call), "hash", call.arguments[1])
    return found.value if found is not None else None


async def hdel(call: CommandCall) -> Reply:
    return await call.gateway.transact(keyspace.remove_parts, name_of(call), "hash", call.arguments[1:])


async def hgetall(call: CommandCall) -> Reply:
    if views.is_view(call.arguments[0]):
        return (await views.find(call, call.arguments[0])).as_hash()
    found = await call.gateway.transact(keyspace.parts, name_of(call), "hash")
    return Pairs({row.part: row.value or b"" for row in found})


async def hexists(call: CommandCall) -> Reply:
    return int(await call.gateway.transact(keyspace.part, name_of(call), "hash", call.arguments[1]) is not None)


async def hlen(call: CommandCall) -> Reply:
    return await call.gateway.transact(keyspace.count, name_of(call), "hash")


async def hincrby(call: CommandCall) -> Reply:
    name, amount = name_of(call), integer(call.arguments[2])
    number = await call.gateway.transact(keyspace.add_to_field, name, call.arguments[1], amount)
    if number is None:
        raise CallRefused(await _why_not(call, name))
    return number


async def _why_not(call: CommandCall, name: keyspace.SpacedKey) -> str:
    found = await call.gateway.transact(keyspace.part, name, "hash", call.arguments[1])
    is_number = found is not None and keyspace.whole_number(found.value or b"") is not None
    return "increment or decrement would overflow" if is_number else "hash value is not an integer"


_ONE = (1, 1, 1)
HASH_COMMANDS = (
    Command("HSET", "key field value [field value ...]", "Store fields of a hash.", hset, keys=_ONE, writes=True),
    Command("HGET", "key field", "Read a field.", hget, keys=_ONE),
    Command("HDEL", "key field [field ...]", "Remove fields.", hdel, keys=_ONE, writes=True),
    Command("HGETALL", "key", "Read all fields, or a live view.", hgetall, keys=_ONE),
    Command("HEXISTS", "key field", "Say whether a field is there.", hexists, keys=_ONE),
    Command("HLEN", "key", "Count the fields.", hlen, keys=_ONE),
    Command("HINCRBY", "key field increment", "Add to a number in a field.", hincrby, keys=_ONE, writes=True),
)


# Sorted sets: members with scores.


_RANGE = "min or max is not a float"


async def zadd(call: CommandCall) -> Reply:
    pairs = call.arguments[1:]
    if len(pairs) % 2:
        raise CallRefused("syntax error")
    name = name_of(call)
    scores = {member: score(number) for number, member in zip(pairs[::2], pairs[1::2], strict=True)}
    return await call.gateway.transact(keyspace.put_scores, name, scores)


async def zrange(call: CommandCall) -> Reply:
    with_scores = _with_scores(call.arguments[3:])
    first, last = integer(call.arguments[1]), integer(call.arguments[2])
    rows = await call.gateway.transact(keyspace.scores, name_of(call))
    start, end = (max(each + len(rows), 0) if each < 0 else each for each in (first, last))
    chosen = rows[start : end + 1] if last >= -len(rows) else []
    return _listed(chosen, with_scores, call.client.protocol)


async def zrangebyscore(call: CommandCall) -> Reply:
    rest, skipped, limit = list(call.arguments[3:]), 0, -1
    with_scores = False
    while rest:
        option = rest.pop(0).upper()
        if option == b"WITHSCORES":
            with_scores = True
        elif option == b"LIMIT" and len(rest) >= 2:
            skipped, limit = integer(rest.pop(0)), integer(rest.pop(0))
        else:
            raise CallRefused("syntax error")
    (lowest, above), (highest, below) = (_bound(each) for each in call.arguments[1:3])
    rows = await call.gateway.transact(keyspace.scores, name_of(call), lowest, highest)
    inside = [row for row in rows if not (above and row.score == lowest) and not (below and row.score == highest)]
    if skipped < 0:
        return []
    return _listed(inside[skipped : None if limit < 0 else skipped + limit], with_scores, call.client.protocol)


async def zrem(call: CommandCall) -> Reply:
    return await call.gateway.transact(keyspace.remove_parts, name_of(call), "zset", call.arguments[1:])


async def zscore(call: CommandCall) -> Reply:
    found = await call.gateway.transact(keyspace.part, name_of(call), "zset", call.arguments[1])
    return Score(found.score) if found is not None and found.score is not None else None


async def zcard(call: CommandCall) -> Reply:
    return await call.gateway.transact(keyspace.count, name_of(call), "zset")


def _bound(text: bytes) -> tuple[float, bool]:
    """A score, and whether the range is open there."""
    return score(text.removeprefix(b"("), _RANGE), text.startswith(b"(")


def _with_scores(options: Sequence[bytes]) -> bool:
    if not options:
        return False
    if len(options) > 1 or options[0].upper() != b"WITHSCORES":
        raise CallRefused("syntax error")
    return True


def _listed(rows: Sequence[PartRow], with_scores: bool, protocol: int) -> Reply:
    if not with_scores:
        return [row.part for row in rows]
    pairs: list[tuple[Reply, Reply]] = [(row.part, Score(row.score or 0.0)) for row in rows]
    return pairs if protocol == 3 else [each for pair in pairs for each in pair]


SORTED_SET_COMMANDS = (
    Command("ZADD", "key score member [score member ...]", "Store members.", zadd, keys=_ONE, writes=True),
    Command("ZRANGE", "key start stop [WITHSCORES]", "Read members by their place.", zrange, keys=_ONE),
    Command(
        "ZRANGEBYSCORE",
        "key min max [WITHSCORES] [LIMIT offset count]",
        "Read members by their score.",
        zrangebyscore,
        keys=_ONE,
    ),
    Command("ZREM", "key member [member ...]", "Remove members.", zrem, keys=_ONE, writes=True),
    Command("ZSCORE", "key member", "Read the score of a member.", zscore, keys=_ONE),
    Command("ZCARD", "key", "Count the members.", zcard, keys=_ONE),
)
