"""A thousand runs that have until tomorrow: the provider's batches answer them, at half the price.

python overnight.py

Nothing is held while a batch is under way. Kill this program, start it again: the keys make them the same runs, and it
waits for what is left of them.
"""

import asyncio

from holdfast import Holdfast, Settings
from holdfast.models import Script, say

REVIEWS = [f"Review {number}: the boat was {'late' if number % 3 else 'on time'}." for number in range(1_000)]

# The defaults gather for ten seconds and poll every thirty; a script answers at once.
hf = Holdfast(settings=Settings.from_environment().override({"batch_wait": "2s"}))
hf.script(
    "priced", Script(lambda messages: say("unhappy" if "late" in messages[-1]["content"][0]["text"] else "happy"))
)
judge = hf.agent("judge", model="scripted:priced", instructions="Is the customer happy? One word.", max_tokens=10)


async def main() -> None:
    async with hf:
        runs = await judge.enqueue_many(REVIEWS, key=str, answer_within="12h")
        print(f"{len(runs):,} runs are committed; their mode is {(await runs[0].refresh()).mode}")
        happy = done = 0
        async for run in hf.runs.as_completed(runs):  # in the order in which they end
            happy += await run.text() == "happy"
            done += 1
            if done % 250 == 0:
                print(f"{done:,} done")
        print(f"{happy} customers are happy")
        (used,) = [each for each in await hf.budgets.used("agent", "mode") if each.agent == "judge"]
        print(f"{used.turns:,} turns, mode {used.mode}: {used.cost:.4f} USD in place of {2 * used.cost:.4f}")


if __name__ == "__main__":
    asyncio.run(main())
