"""The agents that workers of the chaos tests run. What models are asked and tools do is witnessed outside the store.

A tool notes its effect first; if its run has a gate, it then waits for that, so that a test may kill it after its
effect and before its result.
"""

from __future__ import annotations

import asyncio
import os

from holdfast.agents.tools import ToolContext
from holdfast.app import Holdfast, core_of
from holdfast.models.script import Script, call, calls, say
from holdfast.settings import Settings
from tests.chaos.jobs import is_open, note

APP = "tests.chaos.agents:hf"
STORY = ", and then ".join(["once upon a time there was a worker that nobody could kill"] * 5)

hf = Holdfast(settings=Settings(), embedded=False)


@hf.tool
async def look_up(ctx: ToolContext, word: str) -> str:
    """Look a word up."""
    await _take_effect(ctx, f"look_up {ctx.idempotency_key}")
    return f"looked up {word}"


@hf.tool(effect="once", unknown="report")
async def pay(ctx: ToolContext, amount: int) -> str:
    """Pay."""
    await _take_effect(ctx, f"pay {ctx.idempotency_key}")
    return f"paid {amount}"


async def _take_effect(ctx: ToolContext, what: str) -> None:
    note(ctx.variable("witness", str), f"{what} {os.getpid()}")
    gate = ctx.variable("gate", str, "")
    while gate and not is_open(gate):  # noqa: ASYNC110  the gate is a file, opened by another process
        await asyncio.sleep(0.02)


core_of(hf).book.scripts.update(
    clerk=Script(call("look_up", word="owl"), say("the clerk is done")),
    boss=Script(
        calls(call("look_up", word="cat"), call("look_up", word="dog"), call("clerk", task="find owl")), say("all done")
    ),
    teller=Script(say(STORY)),
    payer=Script(calls(call("pay", amount=3), call("look_up", word="receipt")), say("settled")),
)
clerk = hf.agent("clerk", model="scripted:clerk", tools=[look_up])
boss = hf.agent("boss", model="scripted:boss", tools=[look_up], agents=[clerk])
teller = hf.agent("teller", model="scripted:teller")
caller = hf.agent("caller", model="claude-haiku-4-5", tools=[look_up])
payer = hf.agent("payer", model="scripted:payer", tools=[look_up, pay])
