"""A pool of worker processes that grows with its work and goes to zero without it.

`python pool.py` keeps the pool itself. On a real machine, beside the program that enqueues:

    holdfast pool pool:hf --name render --min 0 --max 4 --slots 2
"""

import asyncio
import os

from holdfast import Holdfast, JobContext
from holdfast.pools import Subprocesses

hf = Holdfast(embedded=False)


@hf.job(queue="render")
async def render(ctx: JobContext, prompt: str) -> str:
    """Your own handler: what it prepares and does are steps, so that a killed worker does not repeat them."""
    prepared = await ctx.step("prepare", prompt.strip().lower)
    await asyncio.sleep(0.2)
    return f"{prepared}, by process {os.getpid()}"


async def main() -> None:
    pool = hf.pool(
        "render", min=0, max=2, slots=2, scale_down_idle="1s", queues=["render"], launcher=Subprocesses("pool:hf")
    )
    async with hf, pool:
        jobs = await render.enqueue_many([{"prompt": f" Boat {number} "} for number in range(12)])
        results = [await job.result() for job in jobs]
        print(f"{len(results)} pictures, the first is {results[0].split(',')[0]}")
        stats = await pool.stats()
        while stats.total:
            await asyncio.sleep(0.1)
            stats = await pool.stats()
        print(f"{stats.total} workers are left, {stats.pending} jobs wait")


if __name__ == "__main__":
    asyncio.run(main())
