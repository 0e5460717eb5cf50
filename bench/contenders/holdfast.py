"""Holdfast itself: the app as a user writes it, and its own worker."""

from __future__ import annotations

import logging

from bench.contenders.protocol import Order, Ran, async_gate, main, recorder, say, send
from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.settings import Settings
from holdfast.workers.role import Role

hf = Holdfast(embedded=False, settings=Settings())
ran: Ran = int  # as started by `holdfast worker`: nothing is recorded


@hf.job
async def noop(n: int) -> None:
    ran(n)


async def prepare(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await hf.migrate()


async def enqueue(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await core_of(hf).runtime().open()

    job = noop.options(notify=False) if order.what == "quiet" else noop

    async def insert(numbers: list[int]) -> None:
        if order.chunk == 1:
            await job.enqueue(numbers[0])
        else:
            await job.enqueue_many((n,) for n in numbers)

    await send(order, insert)
    await hf.close()


async def work(order: Order) -> None:
    global ran  # noqa: PLW0603  one job function, one worker, one process
    ran = recorder(order)
    logging.basicConfig(level="WARNING")
    hf.settings = hf.settings.override({"url": order.url})
    hf.settings = Settings().override({name: str(value) for name, value in order.settings.items()})
    await core_of(hf).runtime().open()
    worker = core_of(hf).make_worker(Role(until="empty" if order.until_empty else "stopped"))
    await async_gate()
    await worker.run()
    await hf.close()
    say("done")


async def idle(order: Order) -> None:
    """Be so many idle workers, each with an app, connections and a lifeline of its own."""
    apps = [Holdfast(order.url, embedded=False, settings=Settings()) for _ in range(order.n)]
    workers = []
    for app in apps:
        app.job(name="noop")(_idle_noop)
        await core_of(app).runtime().open()
        workers.append(core_of(app).make_worker())
        await workers[-1].start()
    await async_gate()
    for worker, app in zip(workers, apps, strict=True):
        await worker.stop()
        await app.close()
    say("done")


async def _idle_noop(n: int) -> None:
    """Never enqueued."""


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": enqueue, "work": work, "idle": idle})
