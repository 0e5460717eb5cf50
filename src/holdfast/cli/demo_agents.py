"""The app of `holdfast demo`: an agent that writes notes about towns, with two tools and a second agent that checks.

The model is scripted, so it needs no key. What each tool did is noted in a file outside the database.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from holdfast.agents.tools import ToolContext
from holdfast.app import Holdfast
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, ScriptedTurn, call, calls, last_user_text, say, think
from holdfast.settings import Settings

hf = Holdfast(settings=Settings.from_environment(), embedded=False)

TURNS = 5  # of one run, with those of the checker
CALLS = 3  # of tools, likewise
_SECONDS = 0.6


def note(town: str) -> str:
    """What a run about this town must answer."""
    return (
        f"{town}: light rain in the morning, dry by noon. Trains leave every hour from the central station, "
        f"the last one at 23:10. The note was checked against the timetable, and the timetable agrees."
    )


@hf.tool(effect="read")
async def weather(ctx: ToolContext, town: str) -> str:
    """The weather in a town."""
    await _work(ctx)
    return f"light rain in {town}, dry by noon"


@hf.tool
async def reserve(ctx: ToolContext, town: str) -> str:
    """Reserve a seat on the train to a town."""
    await _work(ctx)
    return f"a seat to {town}, reserved under {ctx.idempotency_key[:8]}"


@hf.tool(effect="read")
async def timetable(ctx: ToolContext, town: str) -> str:
    """The timetable of a town's trains."""
    await _work(ctx)
    return f"{town}: every hour, last 23:10"


async def _work(ctx: ToolContext) -> None:
    """Be at it for a while, and leave a line when it begins and one when it is done."""
    line = {"key": ctx.idempotency_key, "run": ctx.run_id, "pid": os.getpid()}
    _append(ctx.variables["journal"], {"event": "begun", **line})
    await asyncio.sleep(_SECONDS)
    _append(ctx.variables["journal"], {"event": "done", **line})


def _append(path: str, line: dict[str, Any]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _last_word(messages: list[Wire]) -> str:
    return last_user_text(messages).removesuffix(".").split()[-1]


def _look_up(messages: list[Wire]) -> ScriptedTurn:
    town = _last_word(messages)
    opening = say(f"I look up the weather in {town} and reserve a seat; then I write.")
    return calls(opening, call("weather", town=town), call("reserve", town=town))


hf.script(
    "writer",
    Script(
        think("First what I do not know: the weather, and whether there is a seat. Both can be looked up at once."),
        _look_up,
        lambda messages: calls(
            say("Before I hand it in, somebody else should look at it."),
            call("checker", task=f"Check the note about {_last_word(messages)}."),
        ),
        lambda messages: say(note(_last_word(messages))),
    ),
)
hf.script(
    "checker",
    Script(
        lambda messages: calls(say("I compare it with the timetable."), call("timetable", town=_last_word(messages))),
        lambda messages: say(f"The note about {_last_word(messages)} is right: every hour, the last train at 23:10."),
    ),
)

checker = hf.agent(
    "checker",
    model="scripted:checker",
    description="Checks a note against the timetable.",
    instructions="You check what others write.",
    tools=[timetable],
)
writer = hf.agent(
    "writer",
    model="scripted:writer",
    instructions="You write short notes about towns.",
    tools=[weather, reserve],
    agents=[checker],
)
