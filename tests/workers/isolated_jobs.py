"""Jobs in processes of their own: the functions of `isolated_functions`, and those that need the app there."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, JobContext, Retry
from tests.workers import isolated_functions as light

hf = Holdfast("sqlite:///a-test-says-where.db")
twice = Retry(attempts=2, backoff="constant", base="0s")

double = hf.job(isolate="process")(light.double)
shift = hf.job(isolate="process")(light.shift)
pid = hf.job(isolate="process")(light.pid)
meet = hf.job(isolate="process")(light.meet)
lend = hf.job(isolate="process")(light.lend)
noisy = hf.job(isolate="process")(light.noisy)
huge = hf.job(isolate="process")(light.huge)
unstorable = hf.job(isolate="process")(light.unstorable)
fails = hf.job(isolate="process", retry=twice)(light.fails)
ends = hf.job(isolate="process")(light.ends)
exits_sync = hf.job(isolate="process")(light.exits_sync)
dies = hf.job(isolate="process", retry=Retry.none())(light.dies)
dies_leaving = hf.job(isolate="process", retry=Retry.none())(light.dies_leaving)
babbles = hf.job(isolate="process")(light.babbles)
spins = hf.job(isolate="process", timeout="4s", retry=Retry.none())(light.spins)
spins_on_the_loop = hf.job(isolate="process", timeout="4s", retry=Retry.none())(light.spins_on_the_loop)
never_returns = hf.job(isolate="process")(light.never_returns)
holds_the_interpreter = hf.job(isolate="process")(light.holds_the_interpreter)
once = hf.job(isolate="process", retry=twice)(light.once)
steps_at_once = hf.job(isolate="process")(light.steps_at_once)
big_step = hf.job(isolate="process")(light.big_step)
keeps = hf.job(isolate="process")(light.keeps)


@hf.job(isolate="process")
async def shows(ctx: JobContext) -> dict[str, Any]:
    await ctx.progress({"half": True})
    ctx.log.info("seen %d", 1)
    ctx.log.debug("not seen")
    names = ("id", "kind", "queue", "tenant", "attempt", "token", "metadata", "idempotency_key", "cancelled")
    return {name: getattr(ctx, name) for name in names}


@hf.job
async def leaf(n: int) -> int:
    return n * n


@hf.job(isolate="process")
async def tree(ctx: JobContext, n: int) -> list[int]:
    for k in range(n):
        await ctx.start(leaf, k)
    await ctx.start(double, n)
    return [child.result for child in await ctx.join()]


@hf.job(isolate="process")
def listens(ctx: JobContext, channel: str) -> list[Any]:
    return [ctx.wait_sync(channel), ctx.wait_sync(channel, timeout="50ms")]


@hf.job(isolate="process")
async def enqueues() -> None:
    await leaf.enqueue(1)
