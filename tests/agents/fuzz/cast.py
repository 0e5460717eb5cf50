"""The two apps of a program: the agents and tools of each, what models answer, and who saw tools start."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

from holdfast import Compaction, Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.tools import Tool, ToolContext
from holdfast.events import CallView
from holdfast.models.protocol import Wire
from holdfast.models.script import (
    Script,
    ScriptedTurn,
    call,
    calls,
    ends,
    last_user_text,
    refuse,
    say,
    think,
    truncate,
    turns_since_user,
)
from tests.agents.fuzz.program import PAYING
from tests.support.agents import MODEL

OTHER = "claude-haiku-4-5"
MUCH = 50  # a person is asked about more
SMALL = Compaction(
    preserve_last=2, protected_tokens=50, target_tokens=200, window=6_000, summarizer=OTHER, strategy="summarize"
)
_DELEGATES = ("clerk", "lead")
_PEOPLE = ("pay", "refund", "discount", "ask_person")  # what a person is asked about


class Seen:
    """What tools did, by call; workers that were killed afterwards included."""

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.tools: dict[str, str] = {}
        self.inputs: defaultdict[str, list[int]] = defaultdict(list)
        self.begun: Counter[str] = Counter()  # by tool

    def begin(self, ctx: ToolContext, name: str, n: int) -> None:
        self.starts[ctx.call_id] += 1
        self.tools[ctx.call_id] = name
        self.inputs[ctx.call_id].append(n)
        self.begun[name] += 1


class Troupe:
    """One app, with its agents by name."""

    def __init__(self, name: str, app: Holdfast, seen: Seen, seed: int) -> None:
        self.app = app
        self.agents = _cast(name, app, seen, Random(f"tools of {name} {seed}"))


def _cast(name: str, app: Holdfast, seen: Seen, chance: Random) -> dict[str, Agent[str]]:
    """Both have the clerk and the lead; the cashier's money is in the north, the writer's words in the south."""
    common = _common(app, seen, chance)
    clerk = app.agent("clerk", model=OTHER, tools=common, attempts=3)
    lead = app.agent("lead", model=MODEL, tools=common, agents=[clerk], fallbacks=[OTHER])
    if name == "north":
        third = app.agent(
            "cashier", model=MODEL, tools=[*common, *_money(app, seen)], agents=[clerk], fallbacks=[OTHER]
        )
    else:
        asking = app.inquiries.question("ask_person", within="10m", otherwise="nobody knows")
        third = app.agent(
            "writer", model=OTHER, tools=[*common, asking], compaction=SMALL, on_max_tokens="ask", fallbacks=[MODEL]
        )
    return {"clerk": clerk, "lead": lead, third.name: third}


def _common(app: Holdfast, seen: Seen, chance: Random) -> list[Tool[Any, Any]]:
    @app.tool(effect="read")
    def look(ctx: ToolContext, n: int) -> str:
        """Look."""
        seen.begin(ctx, "look", n)
        return f"look {n}"

    @app.tool
    async def note(ctx: ToolContext, n: int) -> str:
        """Note."""
        seen.begin(ctx, "note", n)
        return f"note {n}"

    @app.tool
    async def flaky(ctx: ToolContext, n: int) -> str:
        """Flaky."""
        seen.begin(ctx, "flaky", n)
        if chance.random() < 0.4:
            raise ValueError(f"failed at {n}")
        return f"flaky {n}"

    @app.tool(effect="once", unknown="report")
    async def stamp(ctx: ToolContext, n: int) -> str:
        """Stamp."""
        seen.begin(ctx, "stamp", n)
        return f"stamp {n}"

    return [look, note, flaky, stamp]


def _money(app: Holdfast, seen: Seen) -> list[Tool[Any, Any]]:
    def is_much(view: CallView) -> bool:
        return bool(view.input["n"] > MUCH)

    @app.tool(effect="once", approve=is_much, within="10m")
    async def pay(ctx: ToolContext, n: int) -> str:
        """Pay."""
        seen.begin(ctx, "pay", n)
        return f"pay {n}"

    @app.tool(effect="once", approve=True, within="10m", unknown="report")
    async def refund(ctx: ToolContext, n: int) -> str:
        """Refund."""
        seen.begin(ctx, "refund", n)
        return f"refund {n}"

    @app.tool(approve=is_much, within="10m", otherwise="approve")
    async def discount(ctx: ToolContext, n: int) -> str:
        """Discount."""
        seen.begin(ctx, "discount", n)
        return f"discount {n}"

    return [pay, refund, discount]


class Answers(Script):
    """What is answered at a point of a conversation: always the same, so that a turn asked again is the same turn."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def turn(self, body: Wire) -> ScriptedTurn:
        text, number = last_user_text(body["messages"])[-200:], turns_since_user(body["messages"])
        chance = Random(f"{self._seed} {text} {number}")
        tools = [str(tool["name"]) for tool in body.get("tools") or ()]
        if text.startswith(PAYING) and number == 0 and "pay" in tools:
            return calls(call("pay", n=chance.randrange(100)))
        thoughts = (think(f"about {number}"),) if chance.random() < 0.3 else ()
        if not tools or number >= Random(f"{self._seed} {text}").choice((0, 0, 1, 1, 2, 3)):
            answer = _ending(chance, text)
        else:
            parts = [_call(chance, f"{text} {number}.{place}", tools) for place in range(chance.choice((1, 1, 2, 3)))]
            answer = calls(say(f"let me see {number}"), *parts)
            if chance.random() < 0.03:
                answer = ends("mystery", *answer.parts)
        return ScriptedTurn((*thoughts, *answer.parts), answer.stop_reason, answer.category)


def _ending(chance: Random, text: str) -> ScriptedTurn:
    match chance.choice(("say",) * 7 + ("truncate", "refuse", "window")):
        case "truncate":
            return truncate(f"as for {text}")
        case "refuse":
            return refuse("other")
        case "window":
            return ends("model_context_window_exceeded", say("that is too much"))
        case _:
            return ScriptedTurn((say(f"done with {text}, as far as I can tell, and no further"),))


def _call(chance: Random, place: str, tools: list[str]) -> Any:
    people = [name for name in tools if name in _PEOPLE]
    name = chance.choice((*tools, *tools, *people, *people, *people, "nothing"))
    if name in _DELEGATES:
        return call(name, task=f"task {place}")
    if name == "ask_person":
        return call(name, question=f"what of {place}?")
    return call(name, n="one" if chance.random() < 0.05 else chance.randrange(100))
