"""Agents as tools, three levels deep: an editor asks a reporter, who asks an archivist, who has a tool.

Each is a run of its own, with its own turns and limits, and each survives its worker. Cancelling the editor's run
cancels everything below it.
"""

import asyncio

from holdfast import Holdfast, Limits, ToolContext
from holdfast.models import Script, call, say

hf = Holdfast()
hf.script("archivist", Script(call("search", words="harbour fire"), say("The harbour burned in 1916.")))
hf.script(
    "reporter",
    Script(call("archivist", task="When did the harbour burn?"), say("In 1916 the harbour burned for two days.")),
)
hf.script("editor", Script(call("reporter", task="Write about the fire."), say("Printed on page one.")))


@hf.tool(effect="read")
def search(ctx: ToolContext, words: str) -> str:
    """Search the archive."""
    return f"{words}: 1916, edition of {ctx.variable('paper', str)}"


archivist = hf.agent(
    "archivist", model="scripted:archivist", description="Knows what was printed when.", tools=[search]
)
reporter = hf.agent(
    "reporter", model="scripted:reporter", description="Writes an article from facts.", agents=[archivist]
)
editor = hf.agent("editor", model="scripted:editor", agents=[reporter], limits=Limits(depth=3, turns=20, cost="1.00"))


async def main() -> None:
    async with hf:
        result = await editor.run("The fire of the harbour, please.", variables={"paper": "the Gazette"})
        print(result.text)
        for row in reversed(await hf.runs.list()):
            print("  " * row.depth + f"{row.agent_name}: {row.turns} turns, {row.state}")
        print(f"{(await hf.runs[result.run_id].usage()).runs} runs in one tree")


if __name__ == "__main__":
    asyncio.run(main())
