"""Holdfast's batch mode, compaction and budgets: what each costs beside the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.contenders.protocol import Order, async_gate, main, say
from holdfast import Compaction, Holdfast
from holdfast.agents.batches import job
from holdfast.agents.batches.results import apply
from holdfast.agents.runs import turn
from holdfast.app import core_of
from holdfast.models.script import Script, call
from holdfast.models.script import say as answer
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import MemoryShelf
from holdfast.settings import Settings
from holdfast.workers.role import Role

TOKENS = 200_000
WORD = "some words that take a little room in the history of a session, as they do. "

hf = Holdfast(embedded=False, settings=Settings())


@hf.tool
async def look(question: str) -> str:
    """Look something up."""
    return question


@hf.tool(effect="read")
async def read_page(number: int) -> str:
    """Read a page."""
    return WORD * 60


core_of(hf).book.scripts.update(
    final=Script(answer("Done, and that is all there is to say about it.")),
    tooled=Script(call("look", question="What is it?"), answer("Done.")),
    reader=Script(call("read_page", number=1), answer(WORD * 20)),
    summary=Script(answer("## Summary\n" + WORD * 10)),
)
final = hf.agent("final", model="scripted:final")
tooled = hf.agent("tooled", model="scripted:tooled", tools=[look])
reader = hf.agent("reader", model="scripted:reader", tools=[read_page])


def _use(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    given = {"public_topics": "false", "batch_wait": "1s", "batch_poll_interval": "1s", "max_concurrent_runs": "50"}
    hf.settings = Settings().override({**given, **{name: str(value) for name, value in order.settings.items()}})


async def collect(order: Order) -> None:
    """So many runs through one batch; how long it took to apply the results of their first turns."""
    _use(order)
    await hf.migrate()
    agent = {"final": final, "tooled": tooled}[order.what]
    model = ScriptedModel(core_of(hf).book.scripts[order.what], batches=MemoryShelf(), batch_time=3600.0)
    core_of(hf).book.substitute = model
    laps: list[tuple[float, float]] = []
    vars(job)["apply"] = _timed(apply, laps)
    for first in range(0, order.n, 500):
        await agent.enqueue_many([f"Question {n}?" for n in range(first, min(order.n, first + 500))], mode="batch")
    worker = core_of(hf).make_worker(Role())
    await worker.start()
    while sum(row.size for row in await hf.batches.list() if row.provider_id is not None) < order.n:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    await async_gate()
    for row in await hf.batches.list():  # a scripted model has answered already: a cancel ends the wait, and no more
        if row.provider_id is not None:
            await model.cancel_batch(row.provider_id)
    while sum(row.applied for row in await hf.batches.list()) < order.n:  # noqa: ASYNC110  the store has no bell for it
        await asyncio.sleep(0.05)
    await worker.stop()
    await hf.close()
    say("done", seconds=laps[-1][1] - laps[0][0], applied=order.n)


def _timed(operation: Callable[..., Any], laps: list[tuple[float, float]]) -> Callable[..., Any]:
    async def timed(*args: Any, **more: Any) -> Any:
        begun = time.perf_counter()
        done = await operation(*args, **more)
        laps.append((begun, time.perf_counter()))
        return done

    timed.__name__ = getattr(operation, "__name__", "timed")
    return timed


async def compact(order: Order) -> None:
    """A session of 200,000 tokens; how long compacting it takes, with and without a summary."""
    _use(order)
    await hf.migrate()
    worker = core_of(hf).make_worker(Role())
    await worker.start()
    session = await hf.session("long")
    while (await session.compaction_stats(Compaction(count_tokens=False))).total_tokens < TOKENS:
        await (await session.send("Read on.", reader)).result()
    await async_gate()
    took = {}
    for strategy in ("hybrid", "summarize"):
        config = Compaction(
            strategy=strategy,
            target_tokens=90_000 if strategy == "hybrid" else 20_000,
            protected_tokens=10_000,
            summarizer="scripted:summary",
            count_tokens=False,
        )
        begun = time.perf_counter()
        await session.compact(config)
        took[strategy] = 1e3 * (time.perf_counter() - begun)
        await session.restore()
    await worker.stop()
    await hf.close()
    say("done", **took)


async def budget(order: Order) -> None:
    """Turns with and without a budget to reserve from; how long their begin takes."""
    _use(order)
    await hf.migrate()
    laps: list[tuple[float, float]] = []
    turn.begin = _timed(turn.begin, laps)
    worker = core_of(hf).make_worker(Role())
    await worker.start()
    await async_gate()
    took = {}
    for what in ("without", "with"):
        if what == "with":
            await hf.budgets.set("1000", tenant="acme", per="1d")
            await hf.budgets.set("1000")
        laps.clear()
        for number in range(order.n):
            await (await final.enqueue(f"Question {number}?", tenant="acme")).result()
        durations = sorted(end - begun for begun, end in laps)
        took[what] = 1e3 * durations[len(durations) // 2]
    await worker.stop()
    await hf.close()
    say("done", without=took["without"], budgeted=took["with"])


if __name__ == "__main__":
    main({"collect": collect, "compact": compact, "budget": budget})
