"""Celery on Redis: the prefork pool with one child, as its command starts it."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init

from bench.contenders.protocol import Order, gate, main, recorder, send_sync

state: dict[str, Any] = {}


def make_app(order: Order) -> Celery:
    app = Celery("bench", broker=order.url, set_as_current=True)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=order.settings.get("prefetch", 4),
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        task_serializer="json",
    )

    @app.task(name="noop")
    def noop(n: int) -> None:
        state["ran"](n)

    return app


def prepare(_order: Order) -> None:
    """A broker needs no tables."""


def enqueue(order: Order) -> None:
    app = make_app(order)
    noop = app.tasks["noop"]
    app.connection_for_write().ensure_connection(max_retries=1)
    send_sync(order, lambda numbers: noop.delay(numbers[0]))


def work(order: Order) -> None:
    app = make_app(order)

    @worker_process_init.connect(weak=False)
    def open_board(**_: Any) -> None:
        state["ran"] = recorder(order)

    gate()
    name = f"worker-{order.slot}-{os.getpid()}@localhost"
    options = ["--concurrency=1", "--pool=prefork", f"--hostname={name}", "--loglevel=ERROR"]
    app.worker_main(["worker", "--without-gossip", "--without-mingle", "--without-heartbeat", *options])


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": enqueue, "work": work})
