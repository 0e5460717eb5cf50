"""RUN.START, RESULT and EVENTS: agents for programs in any language. A reader that was cut off continues."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

from holdfast import events
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.lists import AgentsList, RunsList
from holdfast.agents.api.run import Run
from holdfast.errors import ResultTimeout, RunFailed
from holdfast.resp.call import CallRefused, Command, CommandCall, integer, space_of
from holdfast.resp.frames import Reply
from holdfast.values import as_json

_MOST = 1_000
_KEYS = (b"SESSION", b"KEY")
_LONGEST = 3_600_000


async def start(call: CommandCall) -> Reply:
    agent, prompt = call.text(0, "an agent"), call.text(1, "a text")
    options = _options(call.arguments[2:], _KEYS)
    session, key = ((each.decode(errors="replace") if (each := options.get(name)) else None) for name in _KEYS)
    run = await (await _agent(call, agent)).enqueue(prompt, session=session, key=key, tenant=space_of(call))
    return str(run.id)


async def _agent(call: CommandCall, name: str) -> Agent[Any]:
    """One of the program or one in the store, that belongs to the tenant or to nobody."""
    core, tenant = call.gateway.core, space_of(call)
    agents, defined = AgentsList(core, tenant), core.defined.get(name)
    is_foreign = defined is not None and defined.tenant not in ("", tenant)
    return await (agents[name].load() if is_foreign else agents.named(name))


async def result(call: CommandCall) -> Reply:
    """The result as JSON; nil if the run has not ended in time."""
    seconds = _block(call, 1)
    try:
        ended = await _run(call).result(timeout=timedelta(seconds=seconds))
    except ResultTimeout:
        return None
    except RunFailed as failure:
        said = {"outcome": failure.state, "error": str(failure.error), "error_type": failure.error_type}
        return json.dumps(as_json(said))
    return json.dumps(as_json(ended))


async def read(call: CommandCall) -> Reply:
    """Events after a number, each as its number, its type and its JSON; empty if none came in time."""
    after, options = integer(call.arguments[1]), _options(call.arguments[2:], (b"COUNT", b"BLOCK"))
    count = integer(options.get(b"COUNT", b"100"))
    block = integer(options.get(b"BLOCK", b"0"))
    if after < 0 or not 1 <= count <= _MOST or not 0 <= block <= _LONGEST:
        raise CallRefused(f"after is at least 0, COUNT 1 to {_MOST}, BLOCK 0 to {_LONGEST} milliseconds")
    run = _run(call)
    stored = (await run.refresh()).events
    if after >= stored:  # there is nothing yet: wait for the first
        if block == 0 or call.client.executing or not await _comes(run, after, block / 1_000):
            return []
        stored = (await run.refresh()).events
    found: list[Reply] = []
    async with contextlib.aclosing(run.stream(after=after)) as stream:
        async for event in stream:
            found.append([event.seq, _type(event), json.dumps(as_json(event))])
            if len(found) == count or event.seq >= stored:
                break
    return found


async def _comes(run: Run[Any], after: int, seconds: float) -> bool:
    """Whether another event comes within this time."""
    try:
        async with asyncio.timeout(seconds), contextlib.aclosing(run.stream(after=after)) as stream:
            async for _ in stream:
                return True
    except TimeoutError:
        pass
    return False


def _type(event: events.Event) -> str:
    return event.type if isinstance(event, events.UnknownEvent) else events.TYPES.get(type(event), type(event).__name__)


def _run(call: CommandCall) -> Run[Any]:
    return RunsList(call.gateway.core, space_of(call))[call.text(0, "a run id")]


def _block(call: CommandCall, at: int) -> float:
    options = _options(call.arguments[at:], (b"BLOCK",))
    milliseconds = integer(options.get(b"BLOCK", b"0"))
    if not 0 <= milliseconds <= _LONGEST:
        raise CallRefused(f"BLOCK is 0 to {_LONGEST} milliseconds")
    return max(0.01, 0 if call.client.executing else milliseconds / 1_000)


def _options(words: list[bytes], known: tuple[bytes, ...]) -> dict[bytes, bytes]:
    if len(words) % 2 or any(word.upper() not in known for word in words[::2]):
        raise CallRefused("syntax error")
    return {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=True)}


COMMANDS = (
    Command(
        "RUN.START", "agent text [SESSION key] [KEY key]", "Enqueue a run of an agent; its id.", start, writes=True
    ),
    Command(
        "RUN.RESULT", "id [BLOCK milliseconds]", "How a run ended; nil if it has not in this time.", result, waits=True
    ),
    Command(
        "RUN.EVENTS",
        "id after [COUNT n] [BLOCK milliseconds]",
        "The events of a run after this number, each as number, type and JSON.",
        read,
        waits=True,
    ),
)
