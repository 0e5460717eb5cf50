"""Presence: a machine with `heartbeat_interval` is a worker, registered while it runs and heard of on a timer.

The timer is a thread of its own, so that a state may take as long as it likes. It runs in the process that plays the
machine, and ends with it: that is how others learn that it died.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading

from holdfast.errors import Unavailable
from holdfast.facades.flatagents.protocols import RegistrationBackend
from holdfast.facades.flatagents.records import WorkerRegistration

log = logging.getLogger("holdfast.flatagents")


class OwnWorkers:
    """The workers that this process is."""

    def __init__(self) -> None:
        self._timers: dict[str, threading.Event] = {}
        self._turn = threading.Lock()

    def begin(self, registry: RegistrationBackend, worker_id: str, pool_id: str | None, interval: float) -> None:
        """Register, or come back from a pause; from now on heartbeats are sent."""
        with self._turn:
            if worker_id in self._timers:
                return
            _register(registry, worker_id, pool_id)
            stop = self._timers[worker_id] = threading.Event()
        thread = threading.Thread(
            target=_beat, args=(registry, worker_id, interval, stop), name=f"heartbeat of {worker_id}", daemon=True
        )
        thread.start()

    def stop(self, registry: RegistrationBackend) -> None:
        """The process was told to stop: its workers say so, and end soon."""
        with self._turn:
            ids = list(self._timers)
        for worker_id in ids:
            with contextlib.suppress(KeyError):
                registry.update_status(worker_id, "terminating")

    def end(self, registry: RegistrationBackend, worker_id: str) -> None:
        """It has ended, and says so."""
        with self._turn:
            stop = self._timers.pop(worker_id, None)
        if stop is not None:
            stop.set()
            with contextlib.suppress(KeyError):  # somebody else has given it up
                registry.update_status(worker_id, "terminated")

    def end_all(self, registry: RegistrationBackend) -> None:
        """The process ends, and with it those that waited for their processors."""
        with self._turn:
            ids = list(self._timers)
        for worker_id in ids:
            self.end(registry, worker_id)


def _register(registry: RegistrationBackend, worker_id: str, pool_id: str | None) -> None:
    """A worker that another process was, and that nobody has given up, continues here with the item that it has."""
    host, pid = socket.gethostname(), os.getpid()
    try:
        registry.heartbeat(worker_id, {"host": host, "pid": pid})
    except KeyError:
        registry.register(WorkerRegistration(worker_id, host, pid, pool_id=pool_id))


def _beat(registry: RegistrationBackend, worker_id: str, interval: float, stop: threading.Event) -> None:
    away = False
    while not stop.wait(interval):
        try:
            registry.heartbeat(worker_id)
            if away:
                log.warning("worker %s: its heartbeats arrive again", worker_id)
            away = False
        except KeyError:
            log.warning("worker %s was given up; what it says of its item is ignored", worker_id)
            return
        except Unavailable as problem:
            if not away:
                log.warning("worker %s: its heartbeats fail, and it keeps trying: %s", worker_id, problem)
            away = True
