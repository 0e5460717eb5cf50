"""Huey on SQLite, every commit on disk: one worker thread in each process."""

from __future__ import annotations

import logging
from collections.abc import Callable

from huey import SqliteHuey

from bench.contenders.protocol import Order, Ran, gate, main, recorder, send_sync

ran: Ran = int


def make_huey(url: str) -> tuple[SqliteHuey, Callable[[int], object]]:
    huey = SqliteHuey("bench", filename=url.removeprefix("sqlite:///"), fsync=True, results=False)

    @huey.task(name="noop")
    def noop(n: int) -> None:
        ran(n)

    return huey, noop


def prepare(order: Order) -> None:
    make_huey(order.url)


def enqueue(order: Order) -> None:
    _, noop = make_huey(order.url)
    send_sync(order, lambda numbers: noop(numbers[0]))


def work(order: Order) -> None:
    global ran  # noqa: PLW0603  one task, one consumer, one process
    ran = recorder(order)
    huey, _ = make_huey(order.url)
    consumer = huey.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.1)
    logging.getLogger("huey").setLevel("WARNING")
    gate()
    consumer.run()


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": enqueue, "work": work})
