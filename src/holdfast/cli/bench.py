"""`holdfast bench`: how fast jobs go through this very database, with one worker, in this process.

It uses a queue of its own and removes what it made. The numbers say what this machine and this database do with jobs
that do nothing; they are for comparing settings, not products.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.options import changed, json_option, print_json, progress, set_option, url_option
from holdfast.cli.target import database_label, settings_for
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.text import plural
from holdfast.workers.role import Role

QUEUE = "holdfast-bench"
_CHUNK = 1_000
_SINGLES = 100


@dataclass(frozen=True, slots=True)
class BenchResult:
    jobs: int
    enqueue_per_second: float
    work_per_second: float
    latency_p50_ms: float
    latency_p95_ms: float


@click.command()
@click.option("--jobs", type=click.IntRange(1, 100_000), default=5_000, show_default=True, help="How many to run.")
@url_option
@json_option
@set_option
def command(jobs: int, url: str | None, as_json: bool, changes: tuple[str, ...]) -> None:
    """Measure how fast your own database handles jobs: enqueuing, running, and the delay until a single job starts.

    The jobs do nothing, use the queue holdfast-bench, and are removed afterwards.
    """
    logging.basicConfig(level=logging.ERROR)
    app = Holdfast(settings=settings_for(url), embedded=False)
    app.settings = changed(app.settings, changes)
    measured = asyncio.run(Bench(app).run(jobs))
    if as_json:
        print_json(asdict(measured))
        return
    click.echo(f"database  {database_label(app.settings)}")
    click.echo(f"enqueue   {measured.enqueue_per_second:,.0f} jobs/s, {_CHUNK:,} to a transaction")
    click.echo(
        f"work      {measured.work_per_second:,.0f} jobs/s, one worker with {plural(app.settings.concurrency, 'slot')}"
    )
    click.echo(
        f"latency   {measured.latency_p50_ms:.1f} ms from enqueue to start, 95 of 100 within "
        f"{measured.latency_p95_ms:.1f} ms"
    )


class Bench:
    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._started: dict[int, float] = {}
        self._job = app.job(name="holdfast.bench", queue=QUEUE)(self._note)

    async def _note(self, number: int) -> None:
        self._started[number] = time.perf_counter()

    async def run(self, jobs: int) -> BenchResult:
        async with self._app:
            try:
                enqueued = await self._enqueue(jobs)
                worked = await self._work()
                latencies = sorted(await self._singles())
            finally:
                await self._clean()
        return BenchResult(
            jobs=jobs,
            enqueue_per_second=jobs / enqueued,
            work_per_second=jobs / worked,
            latency_p50_ms=latencies[len(latencies) // 2] * 1_000,
            latency_p95_ms=latencies[len(latencies) * 95 // 100] * 1_000,
        )

    async def _enqueue(self, jobs: int) -> float:
        begun = time.perf_counter()
        with progress(range(0, jobs, _CHUNK), "enqueue") as bar:
            for first in bar:
                await self._job.enqueue_many((n,) for n in range(first, min(jobs, first + _CHUNK)))
        return time.perf_counter() - begun

    async def _work(self) -> float:
        worker = core_of(self._app).make_worker(Role(name="bench", queues=(QUEUE,), until="empty"))
        begun = time.perf_counter()
        await worker.run()
        return max(self._started.values(), default=begun + 1e-6) - begun

    async def _singles(self) -> list[float]:
        """One at a time, while a worker waits: from before the call until the handler starts."""
        worker = core_of(self._app).make_worker(Role(name="bench", queues=(QUEUE,)))
        await worker.start()
        seconds: list[float] = []
        try:
            with progress(range(-_SINGLES, 0), "latency") as bar:
                for number in bar:
                    begun = time.perf_counter()
                    job = await self._job.enqueue(number)
                    await job.result()
                    seconds.append(self._started[number] - begun)
        finally:
            await worker.stop()
        return seconds

    async def _clean(self) -> None:
        await self._app.jobs.cancel(state="pending", queue=QUEUE, reason="the bench was interrupted")
        async for _ in Pruner(core_of(self._app).runtime().database, KeepRule(0, 0, firm=True)).thoroughly(queue=QUEUE):
            pass
