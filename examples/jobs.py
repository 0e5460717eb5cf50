"""Plain jobs: a queue with a retry policy, steps that run once, a snooze that costs no attempt.

Run it with `python jobs.py`. In production the two halves are apart: enqueue where you like, and work with
`holdfast worker jobs:hf` on as many machines as you like.
"""

import asyncio
from itertools import count

from holdfast import Holdfast, JobContext, Queue, Retry, Snooze

hf = Holdfast()  # HOLDFAST_URL, or else a SQLite file in .holdfast/
hf.queue("images", Queue(retry=Retry(attempts=5, backoff="exponential", base="100ms")))

looks, shrinkings = count(1), count(1)


async def download(url: str) -> str:
    print(f"downloading {url}")
    return f"the bytes of {url}"


async def disk_has_room() -> bool:
    return next(looks) > 1


def shrink(original: str, width: int) -> str:
    if next(shrinkings) == 1:
        raise OSError("the disk is slow today")
    return f"{original}, {width} wide"


@hf.job(queue="images", timeout="2m")
async def resize(ctx: JobContext, url: str, width: int = 800) -> str:
    original = await ctx.step("download", download, url)  # stored once; after a crash it is not repeated
    print(f"attempt {ctx.attempt}")
    if not await disk_has_room():
        raise Snooze("200ms")  # come back later; costs no attempt
    return await ctx.step("shrink", shrink, original, width)


async def main() -> None:
    async with hf:  # with a worker in this process
        job = await resize.enqueue("https://example.org/a.png", width=400)  # checked by the type checker
        print(await job.result())
        many = await resize.enqueue_many({"url": f"{name}.png"} for name in "bc")
        print(*[await each.result() for each in many], sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
