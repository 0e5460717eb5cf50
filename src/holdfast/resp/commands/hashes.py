"""Hashes: fields with values. HGETALL of a documented key reads a live view."""

from __future__ import annotations

from holdfast.resp import keyspace, views
from holdfast.resp.arguments import integer, name_of
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.replies import Pairs, Reply


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
COMMANDS = (
    Command("HSET", "key field value [field value ...]", "Store fields of a hash.", hset, keys=_ONE, writes=True),
    Command("HGET", "key field", "Read a field.", hget, keys=_ONE),
    Command("HDEL", "key field [field ...]", "Remove fields.", hdel, keys=_ONE, writes=True),
    Command("HGETALL", "key", "Read all fields, or a live view.", hgetall, keys=_ONE),
    Command("HEXISTS", "key field", "Say whether a field is there.", hexists, keys=_ONE),
    Command("HLEN", "key", "Count the fields.", hlen, keys=_ONE),
    Command("HINCRBY", "key field increment", "Add to a number in a field.", hincrby, keys=_ONE, writes=True),
)
