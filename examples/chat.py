"""A chat in the terminal, shown as the model writes it. The session is stored: leave, come back, and continue.

python chat.py
ANTHROPIC_API_KEY=… python chat.py --model claude-haiku-5-5
"""

import argparse
import asyncio

from holdfast import Agent, Holdfast, Limits, Result, Run
from holdfast.events import RunEnded, TextDelta, ToolCalled, TurnRestarted
from holdfast.models import Script, call, say

hf = Holdfast("sqlite:///chat.db")
hf.script(
    "chat",
    Script(
        call("weather", city="Oslo"),
        say("It is sunny in Oslo. I am a script and always say so; start me with --model for somebody to talk to."),
    ),
)


@hf.tool(effect="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}, 19 degrees"


async def show(run: Run[str]) -> None:
    async for event in run.stream():
        match event:
            case TextDelta(text=text):
                print(text, end="", flush=True)
            case ToolCalled(name=name, input=given):
                print(f"[{name} {given}]")
            case TurnRestarted():
                print("\n(the worker died; this turn starts again)")
            case RunEnded(result=Result() as result):
                print(f"\n({result.outcome}, {result.usage.cost} USD)")
            case RunEnded(error=error):
                print(f"\nthat went wrong: {error}")
            case _:
                pass


async def chat(agent: Agent[str], key: str) -> None:
    async with hf:  # with a worker in this process; other workers can help
        session = await hf.session(key)
        print(f"{len(await session.messages())} messages so far. An empty line leaves.")
        while text := await asyncio.to_thread(ask):
            await show(await session.send(text, agent))


def ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="scripted:chat")
    parser.add_argument("--session", default="terminal")
    args = parser.parse_args()
    guide = hf.agent(
        "guide",
        model=args.model,
        tools=[weather],
        instructions="You help travellers, in one or two sentences.",
        limits=Limits(cost="0.10", turns=8),
    )
    asyncio.run(chat(guide, args.session))
