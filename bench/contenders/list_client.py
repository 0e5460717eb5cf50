"""A client of lists: BRPOPLPUSH and LREM, the same against a Redis and against Holdfast's gateway.

`order.url` is the port; `order.what` says whether the server wants a key and workers that are registered.
"""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count

from bench.contenders.protocol import Order, async_gate, main, say
from holdfast.agw.link import Answer, GatewayAddress, Link, read_reply, request

KEY = "a key that all workers of the benchmark have"
GATEWAY = "gateway"
SOURCE, TARGET = "queue:in", "queue:processing"
_PUSHED = 500  # elements in one call
_AT_ONCE = 100  # connections that are opened at the same time


async def connect(order: Order, number: int) -> Link:
    link = await Link.open(GatewayAddress("127.0.0.1", int(order.url)))
    if order.what == GATEWAY:
        worker = {"worker_id": f"w{number}", "hostname": "bench", "agw_version": "1", "max_concurrent_jobs": 100}
        await link.call("AUTH", f"w{number}", KEY)
        await link.call("WORKER.REGISTER", json.dumps({**worker, "capabilities": {"tools": []}}))
    return link


async def fill(link: Link, n: int) -> None:
    for first in range(0, n, _PUSHED):
        await link.call("LPUSH", SOURCE, *(f"element {number}" for number in range(first, min(n, first + _PUSHED))))


async def work(order: Order) -> None:
    """Take and remove all elements over so many connections, `order.chunk` at a time."""
    links = [await connect(order, number) for number in range(order.callers)]
    await fill(links[0], order.n)
    await async_gate()
    left = count(order.n, -order.chunk)
    begun = time.perf_counter()
    await asyncio.gather(*((_pipelined if order.chunk > 1 else _one_by_one)(link, left, order) for link in links))
    say("done", seconds=time.perf_counter() - begun)


async def _one_by_one(link: Link, left: count[int], order: Order) -> None:
    while next(left) > 0:
        element = await link.call("BRPOPLPUSH", SOURCE, TARGET, "1")
        assert isinstance(element, bytes)
        assert await link.call("LREM", TARGET, "1", element) == 1


async def _pipelined(link: Link, left: count[int], order: Order) -> None:
    while next(left) > 0:
        elements = await piped(link, [("RPOPLPUSH", SOURCE, TARGET)] * order.chunk)
        removed = await piped(link, [("LREM", TARGET, "1", each) for each in elements if isinstance(each, bytes)])
        assert removed == [1] * order.chunk


async def piped(link: Link, calls: list[tuple[str | bytes, ...]]) -> list[Answer]:
    """The replies to requests that are sent at once."""
    link._writer.write(b"".join(request(*each) for each in calls))
    return [await read_reply(link._reader) for _ in calls]


async def wake(order: Order) -> None:
    """How long a parked pop takes from the return of the push, in milliseconds; below zero when it was faster."""
    pusher, popper = await connect(order, 0), await connect(order, 1)
    await async_gate()
    delays: list[float] = []
    for number in range(order.warm + order.n):
        popping = asyncio.create_task(_popped(popper))
        await asyncio.sleep(order.pause)
        await pusher.call("LPUSH", SOURCE, f"element {number}")
        pushed = time.perf_counter()
        element, at = await popping
        delays.append((at - pushed) * 1e3)
        await popper.call("LREM", TARGET, "1", element)
    say("done", delays=delays[order.warm :])


async def _popped(link: Link) -> tuple[bytes, float]:
    element = await link.call("BRPOPLPUSH", SOURCE, TARGET, "0")
    assert isinstance(element, bytes)
    return element, time.perf_counter()


async def park(order: Order) -> None:
    """So many connections wait, each with a worker of its own, for what never comes."""
    links: list[Link] = []
    for first in range(0, order.n, _AT_ONCE):
        links += await asyncio.gather(*(connect(order, number) for number in range(first, first + _AT_ONCE)))
    waiting = [asyncio.create_task(_popped(link)) for link in links]
    say("ready")
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    main({"work": work, "wake": wake, "park": park})
