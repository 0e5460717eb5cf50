"""Sorted sets: members with scores."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.resp import keyspace
from holdfast.resp.arguments import integer, name_of, score
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.replies import Reply, Score
from holdfast.resp.rows import PartRow

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


_ONE = (1, 1, 1)
COMMANDS = (
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
