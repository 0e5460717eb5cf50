"""How many connections a worker process takes from PostgreSQL: what docs/operating.md tells people to count with."""

from __future__ import annotations

import asyncpg

from holdfast import Holdfast, JobContext, Settings

_OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


async def test_two_beside_those_for_statements_however_many_jobs_run(postgres_url: str) -> None:
    hf = Holdfast(postgres_url, settings=Settings(connections=3, concurrency=50))

    @hf.job(name="work")
    async def work(ctx: JobContext, number: int) -> int:
        await ctx.step("first", lambda: number)
        return await ctx.step("second", lambda: number)

    watch = await asyncpg.connect(postgres_url)
    seen: list[int] = []
    async with hf:
        jobs = await work.enqueue_many({"number": number} for number in range(300))
        for job in jobs:
            await job.result()
            seen.append(await watch.fetchval(_OTHERS))
    await watch.close()
    assert 3 <= max(seen) <= 2 + 3
