"""A conversation that grows too long: remove old tool outputs, then summarise, then restore all of it.

python compaction.py
"""

import asyncio

from holdfast import Compaction, Holdfast
from holdfast.models import Script, call, say

hf = Holdfast()  # HOLDFAST_URL, or a file in this folder
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]

# Scripts stand in for models here, so that this runs without a key.
hf.script(
    "desk",
    Script(
        call("read_log", day="that day"),
        lambda messages: say(
            "The last incident was on Saturday. What came before is in a summary of 16 messages."
            if "Summary" in messages[0]["content"][0]["text"]
            else "One incident, resolved within the hour."
        ),
    ),
)
hf.script("notes", Script(say("## Done\nLogs of four days were read; one incident each, all resolved.")))


@hf.tool(effect="read")
def read_log(day: str) -> str:
    """The log of a day, whole."""
    return f"log of {day}\n" + "12:00 all is well\n" * 300


desk = hf.agent("desk", model="scripted:desk", tools=[read_log], instructions="You know the logs.")

# Small numbers, so that a short conversation is long. The defaults suit real windows.
TIDY = Compaction(
    window=12_000, target_tokens=6_000, preserve_last=8, protected_tokens=500, summarizer="scripted:notes"
)


async def main() -> None:
    async with hf:
        session = await hf.session()
        for day in DAYS:
            await desk.run(f"What happened on {day}?", session=session)
        stats = await session.compaction_stats(TIDY)
        print(f"{stats.messages} messages, {stats.usage_percent:.0f} % of the window")

        done = await session.compact(TIDY)  # free: it calls no model
        print(f"{done.pruned} outputs of tools removed: {done.tokens_before} to {done.tokens_after} tokens")

        done = await session.compact(TIDY)  # nothing more is free; a model summarises
        print(f"{done.removed} messages summarised: {done.tokens_before} to {done.tokens_after} tokens")
        print((await desk.run("And when was the last one?", session=session)).text)

        await session.restore()
        await session.restore()
        messages = await session.messages()
        print(f"restored twice: {len(messages)} messages, the first of them {messages[0].text!r}")


if __name__ == "__main__":
    asyncio.run(main())
