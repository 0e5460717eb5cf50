"""Crash and resume. Run it twice: the first time it kills its own process in the middle of a tool.

The second time it resumes from the last saved point. `witness.jsonl` has a line for every call of the model.
"""

import os
import signal
from pathlib import Path

from holdfast import Holdfast, Settings, ToolContext
from holdfast.models import Script, call, say

hf = Holdfast("sqlite:///resume.db", settings=Settings(script_witness="witness.jsonl"))
hf.script(
    "writer",
    Script(
        call("outline", title="Tides"),
        call("publish", title="Tides"),
        say("It is published."),
    ),
)


@hf.tool(effect="read")
def outline(title: str) -> str:
    """Make an outline."""
    print(f"making an outline of {title}")
    return "1. moon, 2. sea"


@hf.tool
def publish(ctx: ToolContext, title: str) -> str:
    """Publish an article."""
    print(f"publishing {title}")
    crashed = Path("crashed")
    if not crashed.exists():
        crashed.touch()
        os.kill(os.getpid(), signal.SIGKILL)  # the machine dies here
    return f"published under {ctx.idempotency_key}"


writer = hf.agent("writer", model="scripted:writer", tools=[outline, publish])

if __name__ == "__main__":
    result = writer.run_sync("Write about tides.", key="article-7")
    print(result.text)
    bought = Path("witness.jsonl").read_text().count('"event":"sent"')
    print(f"{result.turns} turns, {bought} calls of the model")
