"""A family: a parent starts children, waits for them and for a person, and holds no worker while it waits."""

import asyncio
from typing import Any

from holdfast import Discard, Holdfast, JobContext

hf = Holdfast()  # HOLDFAST_URL, or else a SQLite file in .holdfast/

BOOK = {"one": "It was a dark night", "two": "It rained", "three": ""}


@hf.job
async def count_words(chapter: str) -> int:
    if not BOOK[chapter]:
        raise Discard(f"chapter {chapter} is empty")
    return len(BOOK[chapter].split())


@hf.job
async def review(ctx: JobContext, title: str) -> str:
    for chapter in BOOK:
        await ctx.start(count_words, chapter)  # started once, however often this runs again
    words = 0
    for child in await ctx.join():
        if child.state == "succeeded":
            words += child.result
        else:
            await ctx.progress(child.error["message"])
    verdict: dict[str, Any] = await ctx.wait(f"verdict on {title}")  # for days, if necessary
    return f"{title}: {words} words, {verdict['opinion']} says {verdict['by']}"


async def main() -> None:
    async with hf:
        job = await review.enqueue("The Storm")
        await hf.signal("verdict on The Storm", {"by": "Ann", "opinion": "thin"})
        print(await job.result())
        print(f"note: {(await job.refresh()).progress}")


if __name__ == "__main__":
    asyncio.run(main())
