"""Hooks of worker machines: `MachineHooks` to derive from, and `DistributedWorkerHooks` with all actions.

`MachineHooks` registers machines that have a `heartbeat_interval`, lets no more workers be launched than the cap, and
starts a process for each. Code in `on_action` finds `self.work_backend` and `self.registration_backend`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from holdfast.errors import Unavailable, UsageError
from holdfast.facades.flatagents.config import BackendConfig, Backends, config_from, config_of, create_backends
from holdfast.facades.flatagents.environment import environment_config
from holdfast.facades.flatagents.launching import (
    SHIPPED_HOOKS,
    SubprocessInvoker,
    found_machine,
    importable_name,
    invoking,
)
from holdfast.facades.flatagents.records import (
    MAX_WORKERS,
    RegistrationBackend,
    WorkBackend,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    WorkPool,
)
from holdfast.facades.flatagents.registration import Store
from holdfast.facades.flatagents.work import acting
from holdfast.kernel.ids import new_id
from holdfast.machines.bundle import Bundle, Finder, gather, load_file
from holdfast.machines.family import LaunchLimit, enqueue_within_limit
from holdfast.machines.graph import GraphSettings, MachineGraph
from holdfast.machines.hooks import MachineHooks as PlainHooks
from holdfast.machines.hooks import playing
from holdfast.machines.orders import OWN_QUEUES, JobPolicy, first_order, new_job
from holdfast.machines.problems import Findings
from holdfast.settings import Settings

# Presence: a machine with `heartbeat_interval` is a worker, registered while it runs and heard of on a timer.
#
# The timer is a thread of its own, so that a state may take as long as it likes. It runs in the process that plays
# the
# machine, and ends with it: that is how others learn that it died.


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


# Spawning: workers that an action starts, under the same admission as those that a `launch` starts.


def spawn(url: str, asked: LaunchLimit, machine: str, input: Mapping[str, Any], count: int, **about: Any) -> list[str]:
    """Enqueue as many of `count` workers as may start; their ids. `about` says which execution starts them."""
    bundle, store = _bundle(machine), Store(url)
    order, core = first_order(bundle, input, **about), store.core
    jobs = [
        new_job(new_id(core.ports), order, JobPolicy(asked.queue), core.settings) for _ in range(min(count, asked.most))
    ]
    try:
        return store.call(store.transact(enqueue_within_limit, asked, jobs))
    finally:
        store.close()


def _bundle(machine: str) -> Bundle:
    found = Findings()
    bundle = gather(load_file(found_machine(machine)), Finder().find, found)
    found.raise_any()
    return bundle


LAUNCHED = f"{OWN_QUEUES}flatagents."  # the queue of the workers of a pool
_STALE = 60.0  # seconds, for a registry that does not say
_MISSPELT = 0.85  # how much a name is like another one, from 0 to 1; `validate_job` is no mistake


class MachineHooks(PlainHooks):
    """Hooks with a registry of workers and pools of work.

    Without `backends` they are those of the environment, or of the machine's `settings.backends`. Processes that are
    launched have the same. Those of your own classes are made by your class of hooks, in its `__init__`.
    """

    _backends: Backends | None = None
    _config: BackendConfig | None = None
    _invoker: SubprocessInvoker | None = None
    _presence: OwnWorkers | None = None
    _making = threading.Lock()

    def __init__(
        self,
        backends: Backends | BackendConfig | Mapping[str, Any] | None = None,
        *,
        invoker: SubprocessInvoker | None = None,
    ) -> None:
        self._invoker = invoker
        if isinstance(backends, Backends):
            self._backends = backends
        elif backends is not None:
            self._config = backends if isinstance(backends, BackendConfig) else config_of(backends)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "on_action" in cls.__dict__:
            cls.on_action = _acted(cls.__dict__["on_action"])  # type: ignore[attr-defined]

    @property
    def backends(self) -> Backends:
        with self._making:
            if self._backends is None:
                self._config = self._config or environment_config() or BackendConfig()
                self._backends = create_backends(self._config)
            return self._backends

    @property
    def registration_backend(self) -> RegistrationBackend:
        return self.backends.registration

    @property
    def work_backend(self) -> WorkBackend:
        return self.backends.work

    def on_attempt_start(self, execution_id: str, machine: MachineGraph, input: Mapping[str, Any]) -> None:
        """A machine with `heartbeat_interval` is a worker from now on."""
        settings = machine.settings
        self.learn(settings)
        if settings.heartbeat_interval is None:
            return
        self._presence = self._presence or OwnWorkers()
        pool = settings.worker_pool or input.get("pool_id")
        self._presence.begin(self.registration_backend, execution_id, pool, settings.heartbeat_interval)

    def learn(self, settings: GraphSettings) -> None:
        """Use the backends of a machine's settings, if nobody has said which to use."""
        if self._backends is None and self._config is None and environment_config() is None and settings.backends:
            self._config = config_of({"backends": settings.backends})

    def on_attempt_end(self, execution_id: str, how: str) -> None:
        """It has ended, unless it only waits, and its process with it."""
        if self._presence is not None and how != "parked":
            self._presence.end(self.registration_backend, execution_id)

    def on_stopping(self) -> None:
        """SIGTERM: the workers that this process is are terminating, also those that wait for their processors."""
        if self._presence is not None:
            self._presence.stop(self.registration_backend)

    def on_stopped(self) -> None:
        if self._presence is not None:
            self._presence.end_all(self.registration_backend)

    def on_launch(self, names: Sequence[str], context: Mapping[str, Any]) -> LaunchLimit | None:
        """No more workers than there is work for, and than `context.max_workers`; without that, there is no cap."""
        if "max_workers" not in context or "pool_id" not in context:
            return None
        return self.admission(str(context["pool_id"]), int(context["max_workers"]))

    def admission(self, pool_id: str, most: int) -> LaunchLimit:
        """No more workers of a pool than `most`, and than there is work for."""
        if type(self).on_launched is MachineHooks.on_launched and invoking.get() is None:
            _ = self.invoker  # what no process could find is refused before anything is stored
        work = work_of(self.work_backend.pool(pool_id))
        live = tuple(worker.worker_id for worker in live_workers(self.registration_backend, pool_id))
        return LaunchLimit(f"{LAUNCHED}{pool_id}", min(work, most), live, self.gone)

    def gone(self, worker_ids: Sequence[str]) -> list[str]:
        """Those of these workers that have ended or were given up; one that never came may still come."""
        found = [self.registration_backend.get(id) for id in worker_ids]
        return [each.worker_id for each in found if each is not None and each.status in ("terminated", "lost")]

    def on_launched(self, execution_ids: Sequence[str], queue: str, url: str) -> None:
        """Start a process for each; one that is missing is started by the next tick. What a trigger of the type in_loop
        has started launches into its own process."""
        (invoking.get() or self.invoker).play(execution_ids, queue, url)

    @property
    def invoker(self) -> SubprocessInvoker:
        """Starts processes with these hooks and backends, of the program that plays the machine."""
        if self._invoker is not None:
            return self._invoker
        program = playing.get()
        url, app = (None, None) if program is None else program
        return SubprocessInvoker(self._target(), url=url, app=app, backends=self._shared())

    def _target(self) -> str:
        """Where a process finds these hooks; those that were made by hand are not to be found."""
        kind = type(self)
        module = inspect.getmodule(kind)
        if module is None or getattr(module, kind.__qualname__, None) is not kind:
            return SHIPPED_HOOKS
        return f"{importable_name(module)}:{kind.__qualname__}"

    def _shared(self) -> Mapping[str, Any] | None:
        """The backends, for a process that makes hooks of this class; None: the class knows itself."""
        made = self.backends
        config = self._config or config_from(made)
        if config is not None:
            return config.absolute()
        if type(self).__init__ is MachineHooks.__init__:
            raise UsageError(
                f"a process that is launched cannot make {type(made.work).__name__} and "
                f"{type(made.registration).__name__} again: derive a class of hooks that makes them in its __init__."
            )
        return None


def _acted(method: Any) -> Any:
    """Let the pools know for which worker an action runs, so that `complete` finds its claim in any process."""

    @functools.wraps(method)
    def action(self: MachineHooks, *args: Any) -> Any:
        with _acting_for(args):
            return method(self, *args)

    @functools.wraps(method)
    async def awaited(self: MachineHooks, *args: Any) -> Any:
        with _acting_for(args):
            return await method(self, *args)

    return awaited if inspect.iscoroutinefunction(method) else action


@contextlib.contextmanager
def _acting_for(args: Sequence[Any]) -> Iterator[None]:
    context = args[-1] if args else None
    before = acting.set(context.get("worker_id") if isinstance(context, Mapping) else None)
    try:
        yield
    finally:
        acting.reset(before)


def work_of(pool: WorkPool) -> int:
    """How many workers a pool could use: one for each item that waits, or is worked on."""
    claimed = getattr(pool, "claimed", None)
    return pool.size() + (claimed() if claimed is not None else 0)


def stale_after(registry: RegistrationBackend) -> float:
    """After how many seconds without a word a worker is stale, as its registry says."""
    return float(getattr(registry, "stale_threshold_seconds", _STALE))


def live_workers(registry: RegistrationBackend, pool_id: str | None) -> list[WorkerRecord]:
    """Active workers of a pool that are heard of."""
    stale = {each.worker_id for each in registry.list(WorkerFilter(stale_threshold_seconds=stale_after(registry)))}
    active = [each for each in registry.list(status="active") if each.worker_id not in stale]
    return [each for each in active if pool_id is None or each.pool_id in (None, pool_id)]


class DistributedWorkerHooks(MachineHooks):
    """The actions of the checker, the worker and the reaper."""

    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        """An action that is not known is perhaps that of other hooks, so it is no error."""
        method = ACTIONS.get(action)
        if method is None and (close := difflib.get_close_matches(action, ACTIONS, n=1, cutoff=_MISSPELT)):
            log.warning("there is no action %r. Did you mean %r?", action, close[0])
        return context if method is None else method(self, context)

    def _pool(self, context: Mapping[str, Any]) -> WorkPool:
        return self.work_backend.pool(str(context["pool_id"]))

    def get_pool_state(self, context: Mapping[str, Any]) -> dict[str, Any]:
        pool, live = self._pool(context), live_workers(self.registration_backend, context.get("pool_id"))
        return {"queue_depth": pool.size(), "active_workers": len(live), "claimed": work_of(pool) - pool.size()}

    def calculate_spawn(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """How many workers are missing: one for each item, no more than the cap, without those that live."""
        work = min(work_of(self._pool(context)), int(context.get("max_workers", MAX_WORKERS)))
        live = live_workers(self.registration_backend, context.get("pool_id"))
        return {"workers_to_spawn": max(0, work - len(live))}

    def spawn_workers(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Start workers, as many as may live: like those of a `launch`, the others are dropped."""
        worker = str(context.get("worker_config_path") or context.get("worker_machine") or "job_worker")
        pool_id, count = str(context["pool_id"]), int(context.get("workers_to_spawn") or 0)
        program, machine = playing.get(), context.get("machine", {})
        url = Settings.from_environment().url if program is None else program.url
        asked = self.admission(pool_id, int(context.get("max_workers", MAX_WORKERS)))
        about = {"parent": machine.get("execution_id"), "depth": machine.get("depth", 0) + 1}
        ids = spawn(url, asked, worker, {"pool_id": pool_id}, count, **about)
        self.on_launched(ids, asked.queue, url)
        return {"spawned": len(ids), "spawned_ids": ids, "refused": count - len(ids)}

    def claim_job(self, context: Mapping[str, Any]) -> dict[str, Any]:
        item = self._pool(context).claim(context["worker_id"])
        return {"job": None if item is None else item.data, "job_id": None if item is None else item.id}

    def complete_job(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """`late`: it was taken back from this worker, and its result is ignored."""
        return {"late": self._pool(context).complete(context["job_id"], context.get("result")) is False}

    def fail_job(self, context: Mapping[str, Any]) -> dict[str, Any]:
        error = context.get("error") or context.get("last_error")
        return {"late": self._pool(context).fail(context["job_id"], error) is False}

    def register_worker(self, context: Mapping[str, Any]) -> dict[str, Any]:
        id = context.get("worker_id") or context["machine"]["execution_id"]
        me = WorkerRegistration(id, capabilities=context.get("capabilities") or (), pool_id=context.get("pool_id"))
        known = self.registration_backend.get(id)
        if known is None or known.status in ("terminated", "lost"):
            self.registration_backend.register(me)
        return {"worker_id": id}

    def deregister_worker(self, context: Mapping[str, Any]) -> dict[str, Any]:
        self.registration_backend.update_status(context["worker_id"], "terminated")
        return {"worker_id": context["worker_id"]}

    def heartbeat(self, context: Mapping[str, Any]) -> dict[str, Any]:
        self.registration_backend.heartbeat(context["worker_id"])
        return {"worker_id": context["worker_id"]}

    def list_stale_workers(self, context: Mapping[str, Any]) -> dict[str, Any]:
        threshold = context.get("stale_threshold_seconds") or stale_after(self.registration_backend)
        found = self.registration_backend.list(WorkerFilter(stale_threshold_seconds=float(threshold)))
        pool = context.get("pool_id")
        return {"workers": [asdict(each) for each in found if pool is None or each.pool_id in (None, pool)]}

    def reap_worker(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Take back what a worker has, and give it up. Released before and after: one that lives may claim between."""
        worker, pool = context["worker"], self._pool(context)
        id = worker["worker_id"] if isinstance(worker, Mapping) else str(worker)
        released = pool.release_by_worker(id)
        self.registration_backend.update_status(id, "lost")
        return {"worker_id": id, "released": released + pool.release_by_worker(id)}

    def reap_stale_workers(self, context: Mapping[str, Any]) -> dict[str, Any]:
        stale = self.list_stale_workers(context)["workers"]
        reaped = [self.reap_worker({**context, "worker": worker}) for worker in stale]
        return {"reaped_count": len(reaped), "reaped": reaped}


ACTIONS: dict[str, Any] = {
    name: cast(Any, getattr(DistributedWorkerHooks, name))
    for name in (
        *("get_pool_state", "claim_job", "complete_job", "fail_job", "register_worker", "deregister_worker"),
        *("heartbeat", "list_stale_workers", "reap_worker", "reap_stale_workers", "calculate_spawn", "spawn_workers"),
    )
}
