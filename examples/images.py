"""Pictures, resized: a queue with limits, steps that run once, a snooze that costs no attempt, a schedule.

Run it with `python images.py`. In production, work with `holdfast worker images:hf` on as many machines as you like.
"""

import asyncio
from pathlib import Path

from holdfast import Holdfast, JobContext, Queue, Retry, Snooze

hf = Holdfast()  # HOLDFAST_URL, or else a SQLite file in .holdfast/
hf.queue("images", Queue(concurrency=20, rate="100/min", retry=Retry(attempts=5, backoff="exponential")))


async def download(url: str) -> str:
    return f"the bytes of {url}"


def shrink(original: str, width: int) -> str:
    return f"{original}, {width} wide"


async def disk_has_room() -> bool:
    return not await asyncio.to_thread(Path("full").exists)


async def stale() -> list[str]:
    return ["b.png", "c.png"]


@hf.job(queue="images", timeout="2m")
async def resize(ctx: JobContext, url: str, width: int = 800) -> str:
    original = await ctx.step("download", download, url)  # stored once; after a crash it is not repeated
    if not await disk_has_room():
        raise Snooze("5m")  # costs no attempt
    return await ctx.step("shrink", shrink, original, width)


@hf.schedule("0 3 * * *", timezone="Europe/Athens")
async def nightly() -> None:
    await resize.enqueue_many({"url": url} for url in await stale())


async def main() -> None:
    async with hf:  # with a worker in this process
        job = await resize.enqueue("https://example.org/a.png", width=400)  # checked by the type checker
        print(await job.result())  # a str


if __name__ == "__main__":
    asyncio.run(main())  # to run only a worker: hf.work_sync(), or holdfast worker images:hf
