"""The process of a worker: `python -m holdfast.facades.universal_agent.worker_process FD`.

Only `process_workers` starts it. Its standard input is its leash: it drains when the manager is gone. On FD it reads
what it is to be, and reports what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from holdfast.app import Holdfast, core_of
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.default_handler import handle_by_gateway
from holdfast.facades.universal_agent.install import install
from holdfast.facades.universal_agent.process_workers import ProcessOrder, set_importing
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db, defined_agent
from holdfast.facades.universal_agent.worker import RunHandler, Worker, WorkerConfig
from holdfast.observe import Event
from holdfast.pools.leash import ChildEnd, Drain, send_last_words
from holdfast.text import message_of
from holdfast.workers.isolation.addresses import find

_LINE = "%(asctime)s %(levelname)-7s %(message)s [worker {}]"


def main() -> None:
    held = ChildEnd()
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    order = ProcessOrder.read(line.makefile().readline())
    sys.path[:] = order.path
    code = 0
    try:
        app, handler = load(order)
        logging.basicConfig(format=_LINE.format(order.config["worker_id"]))  # unless the program has set up its own
        asyncio.run(work(order, app, handler, line, held))
    except Exception as problem:  # noqa: BLE001  the edge of a process: whatever ended it, the pool is told
        send_last_words(message_of(problem))
        code = 1
    # Not closed: a handler or a thread that never ends must not keep a drained worker from leaving.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def load(order: ProcessOrder) -> tuple[Holdfast, RunHandler]:
    """Import the program's handler, its app, and what defines its agent."""
    config = WorkerConfig(**order.config)

    async def by_gateway(run_id: str, workspace_dir: str) -> bool:
        return await handle_by_gateway(run_id, workspace_dir, config.gateway_url, config.gateway_token)

    set_importing(True)
    try:
        if order.installed:
            install()
        handler: Any = by_gateway if order.handler is None else find(order.handler)
        if order.agent is not None:
            install(find(order.agent))  # type: ignore[arg-type]  # it was a function there
        app = None if order.app is None else find(order.app)
    finally:
        set_importing(False)
    if order.defines and defined_agent() is None:
        raise UsageError("the agent of install(…) is not known in a worker process: give install a module's function.")
    if not isinstance(app, Holdfast):
        app = Holdfast()
    core_of(app).settings = app.settings.override(order.settings)  # the program may have chosen another database
    return app, handler


async def work(order: ProcessOrder, app: Holdfast, handler: RunHandler, line: socket.socket, held: ChildEnd) -> None:
    """Work until a signal, or until the manager is gone. A second signal hands back at once."""
    conn = connect_runtime_db(app)
    worker = _ReportingWorker(WorkerConfig(**order.config), conn, handler, line)
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        worker.ask_to_stop(drain=signals == 1)
        worker.report()

    loop = asyncio.get_running_loop()
    starting = asyncio.create_task(worker.start(pool=order.pool), name="start")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stop() if starting.done() else starting.cancel())
    with contextlib.suppress(asyncio.CancelledError):
        await starting
        held.works(Drain(loop, stop, app.settings.drain_grace.total_seconds()))
        worker.report()
        await worker.ended()
    await conn.aclose()
    await app.close()


class _ReportingWorker(Worker):
    """A worker that says what it does whenever that changes."""

    def __init__(self, config: WorkerConfig, conn: RuntimeDb, handler: RunHandler, line: socket.socket) -> None:
        self._line = line
        super().__init__(config, conn, _told(handler, self.report))

    def report(self) -> None:
        said = {**self.stats(), "lost": self.lost, "draining": self.status == "draining"}
        with contextlib.suppress(OSError):  # the manager is gone, or reads nothing; the next report says all of it
            self._line.send(f"{json.dumps(said)}\n".encode(), socket.MSG_DONTWAIT)

    def _hear(self, event: Event) -> None:
        super()._hear(event)
        self.report()


def _told(handler: RunHandler, report: Callable[[], None]) -> RunHandler:
    async def on_run(run_id: str, workspace_dir: str) -> bool:
        report()
        return await handler(run_id, workspace_dir)

    return on_run


if __name__ == "__main__":
    main()
