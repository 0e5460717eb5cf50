"""SET and GET. GET of a documented key reads a live view."""

from __future__ import annotations

from holdfast.resp import keyspace, views
from holdfast.resp.arguments import integer, name_of
from holdfast.resp.call import CallRefused, Command, CommandCall
from holdfast.resp.commands import published
from holdfast.resp.keyspace import KeyChange
from holdfast.resp.replies import OK, Reply

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
