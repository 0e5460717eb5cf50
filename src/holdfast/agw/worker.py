"""The worker: registers, takes jobs, runs them, and delivers what came of them.

Heartbeats and results have a connection of their own, so a pop that waits delays neither. When the connection is lost
the jobs continue: the worker comes back after 1, 2, 4 … 60 seconds, registers again under the same id, which keeps its
leases, and delivers what has finished meanwhile. Its first registration hands back what an earlier process of this id
held: that process is dead or fenced, and nobody here works on those jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import random
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.agw.execution import PlanPlace, PlanResult, UnixTools, execute, fitted
from holdfast.agw.link import GatewayAddress, GatewayRefusal, Link, LinkPatience
from holdfast.agw.processes import ProcessLimits
from holdfast.clock import Ports
from holdfast.errors import VERSION, UsageError
from holdfast.resp.plan import read_plan

# What a worker says about itself with each heartbeat.


@dataclass(slots=True)
class JobTally:
    completed: int = 0
    failed: int = 0
    spent_ms: int = 0

    def add(self, status: str, duration_ms: int) -> None:
        self.completed += status == "completed"
        self.failed += status != "completed"
        self.spent_ms += duration_ms


def stats(tally: JobTally, active: int, uptime: float) -> dict[str, Any]:
    ended = tally.completed + tally.failed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "active_jobs": active,
        "completed_jobs_total": tally.completed,
        "failed_jobs_total": tally.failed,
        "avg_job_duration_ms": tally.spent_ms // ended if ended else 0,
        "uptime_seconds": int(uptime),
        "cpu_usage_percent": round(100 * os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "memory_mb": peak >> (20 if sys.platform == "darwin" else 10),
        "disk_available_gb": shutil.disk_usage(tempfile.gettempdir()).free >> 30,
    }


def platform_name() -> str:
    return f"{sys.platform}-{platform.machine()}"


log = logging.getLogger("holdfast.agw")

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
PATIENCE = LinkPatience(connect=10, reply=30)
PASSING = (
    "TRYAGAIN",
    "ERR Worker not registered",
    "ERR Too many authentication failures",
    "ERR max number of clients reached",
    "ERR Internal error",
)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    address: GatewayAddress
    key: str
    worker_id: str
    queues: tuple[str, ...] = ("ready",)
    max_jobs: int = 1
    tags: Mapping[str, str] | None = None
    drain_seconds: float = 300.0
    heartbeat_seconds: float | None = None  # None: as the gateway says
    pop_seconds: float = 5.0  # for which a pop waits, and so a drain
    patience: LinkPatience = PATIENCE
    report_seconds: float = 1.0  # between two looks at how far a plan is


class AgwWorker:
    """`await worker.run()` until `worker.stop()`, which drains."""

    def __init__(self, options: WorkerOptions, toolbox: UnixTools, limits: ProcessLimits, ports: Ports) -> None:
        self._options, self._toolbox, self._limits, self._ports = options, toolbox, limits, ports
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._free = asyncio.Semaphore(options.max_jobs)
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._control: Link | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self._came_back = False  # this process has registered before
        self._away_since: float | None = None  # when the gateway was lost, if it is
        self._interval = options.heartbeat_seconds or 30.0
        self._tally = JobTally()
        self._begun = ports.clock.monotonic()

    @property
    def active(self) -> list[str]:
        """The jobs under way."""
        return sorted(self._jobs)

    def stop(self) -> None:
        self._stopping.set()

    def hurry(self) -> None:
        """While it stops: the jobs under way are handed back now."""
        self._hurry.set()

    async def run(self) -> None:
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await self._drain(serving)
            if serving.done():
                await serving  # it says why
        finally:
            for task in (serving, stopping):
                task.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)

    async def _serve(self) -> None:
        """One session after the other, also while the worker drains: its jobs still need heartbeats."""
        pause = FIRST_PAUSE
        while True:
            began = self._ports.clock.monotonic()
            try:
                await self._session()
            except (OSError, GatewayRefusal) as problem:
                if isinstance(problem, GatewayRefusal) and not self._is_passing(problem):
                    raise UsageError(f"the gateway refuses this worker: {problem}.") from None
                if self._ports.clock.monotonic() - began > LAST_PAUSE:
                    pause = FIRST_PAUSE
                wait = pause_with_jitter(pause, self._ports.random)
                if self._away_since is None:
                    self._away_since = self._ports.clock.monotonic()
                    log.warning("the gateway is away: %s. This worker keeps trying, at least once a minute.", problem)
                pause = min(pause * 2, LAST_PAUSE)
                await self._ports.clock.sleep(wait)

    @staticmethod
    def _is_passing(refusal: GatewayRefusal) -> bool:
        """Whether it may be otherwise in a moment: the store was away, the gateway was full, or we were given up."""
        return str(refusal).startswith(PASSING)

    async def _session(self) -> None:
        """One registration, until the connection is lost."""
        control = self._control = await self._open()
        try:
            popping = await self._open()
            try:
                await self._register(control)
                self._registered.set()
                log.info("worker %s is registered", self._options.worker_id)
                if self._away_since is not None:
                    away, self._away_since = self._ports.clock.monotonic() - self._away_since, None
                    log.warning("the gateway is back after %.0f s", max(1.0, away))
                await self._beat_and_pull(control, popping)
            finally:
                await popping.close()
        finally:
            self._registered.clear()
            await control.close()

    async def _beat_and_pull(self, control: Link, popping: Link) -> None:
        """Pull until the worker stops, beat until somebody cancels; whichever fails first ends both.

        So does the loss of a connection, which a busy worker would else notice with its next heartbeat: until then it
        could deliver nothing.
        """
        beating = asyncio.create_task(self._beat(control))
        pulling = self._pulling = asyncio.create_task(self._pull(popping))
        losing = [asyncio.create_task(link.watch()) for link in (control, popping)]
        try:
            await asyncio.wait({beating, pulling, *losing}, return_when=asyncio.FIRST_COMPLETED)
            if pulling.done():
                await pulling
            ended, _ = await asyncio.wait({beating, *losing}, return_when=asyncio.FIRST_COMPLETED)
            await ended.pop()
        finally:
            for task in (beating, pulling, *losing):
                task.cancel()
            await asyncio.gather(beating, pulling, *losing, return_exceptions=True)

    async def _open(self) -> Link:
        link = await Link.open(self._options.address, self._options.patience)
        try:
            await link.call("AUTH", self._options.worker_id, self._options.key)
            await link.call("CLIENT", "POPFORM", "BULK")
        except BaseException:
            await link.close()
            raise
        return link

    async def _register(self, link: Link) -> None:
        said = {
            "worker_id": self._options.worker_id,
            "hostname": socket.gethostname(),
            "platform": platform_name(),
            "agw_version": VERSION,
            "capabilities": {"tools": self._toolbox.tools, "agentic_units": list(self._toolbox.units)},
            "max_concurrent_jobs": self._options.max_jobs,
            "takes": "plans",
            "tags": dict(self._options.tags or {}),
            **({"descriptions": dict(self._toolbox.cards)} if self._toolbox.cards else {}),
        }
        reply = await link.call("WORKER.REGISTER", json.dumps(said), *(() if self._came_back else ("RELEASE",)))
        self._came_back = True
        words = dict(word.split("=", 1) for word in str(reply).split() if "=" in word)
        if self._options.heartbeat_seconds is None and words.get("heartbeat_interval", "").isdigit():
            self._interval = float(words["heartbeat_interval"])

    async def _beat(self, link: Link) -> None:
        while True:
            said = stats(self._tally, len(self._jobs), self._ports.clock.monotonic() - self._begun)
            await link.call("WORKER.HEARTBEAT", self._options.worker_id, json.dumps(said))
            await self._ports.clock.sleep(self._interval)

    async def _pull(self, link: Link) -> None:
        keys = [f"queue:{name}" for name in self._options.queues]
        while not self._stopping.is_set():
            if not await self._a_slot():
                return
            try:
                popped = await link.call(
                    "BRPOP", *keys, str(self._options.pop_seconds), waits=self._options.pop_seconds
                )
            except BaseException:
                self._free.release()
                raise
            if not isinstance(popped, bytes):
                self._free.release()
                continue
            job = _read_job(popped)
            if job is None or job["job_id"] in self._jobs:
                log.error("an element of a queue is no job that this worker can report about: %.200r", popped)
                self._free.release()
                continue
            self._jobs[job["job_id"]] = asyncio.create_task(self._work(job), name=job["job_id"])

    async def _a_slot(self) -> bool:
        """Wait for a free slot; False if the worker stops first."""
        taking = asyncio.create_task(self._free.acquire())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if taking.done():
            return True
        taking.cancel()
        return False

    async def _work(self, job: Mapping[str, Any]) -> None:
        id = job["job_id"]
        try:
            await self._deliver(id, {"status": "running", "attempt": job.get("attempt")})
            begun = self._ports.clock.monotonic()
            executed = await self._reported(job)
            took = int((self._ports.clock.monotonic() - begun) * 1_000)
            self._tally.add(executed.status, took)
            ended: dict[str, Any] = {"status": executed.status, "task_results": list(executed.results)}
            if executed.error:
                ended["error"] = executed.error
            await self._deliver(id, fitted({**ended, "attempt": job.get("attempt"), "duration_ms": took}))
        except GatewayRefusal as refusal:
            log.warning("the result of job %s is not wanted: %s", id, refusal)
        except Exception:  # the edge of a job: the worker and its other jobs live on
            log.exception("job %s could not be reported; it comes back when its lease ends", id)
        finally:
            del self._jobs[id]
            self._free.release()

    async def _reported(self, job: Mapping[str, Any]) -> PlanResult:
        """Run a job, and say now and then how far it is."""
        place = PlanPlace()
        reporting = asyncio.create_task(self._report(job, place))
        try:
            executed = await self._execute(job, place)
            place.ended.set()
            await reporting  # what it says comes before the result
            return executed
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _report(self, job: Mapping[str, Any], place: PlanPlace) -> None:
        reported: dict[str, int] = {}
        while not place.ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.report_seconds):
                    await place.ended.wait()
            if place.ended.is_set() or place.as_json() == reported:
                continue
            reported = place.as_json()
            try:
                await self._deliver(job["job_id"], {"status": "running", "attempt": job.get("attempt"), **reported})
            except GatewayRefusal as refusal:  # the result will say more
                log.warning("progress of job %s is not wanted: %s", job["job_id"], refusal)
                return

    async def _execute(self, job: Mapping[str, Any], place: PlanPlace) -> PlanResult:
        if "plan" not in job:
            return PlanResult((), f"this worker runs plans, and a job of kind {job.get('kind')!r} has none")
        try:
            plan = read_plan(job["plan"])
        except UsageError as problem:
            return PlanResult((), f"the plan cannot be run: {problem}")
        try:
            return await execute(plan, job.get("input"), self._toolbox, self._limits, self._ports.clock, place)
        except Exception as problem:  # the edge of a job: it fails, and nothing else
            log.exception("job %s failed in the worker", job["job_id"])
            return PlanResult((), f"the worker failed: {type(problem).__name__}")

    async def _deliver(self, id: str, update: Mapping[str, Any]) -> None:
        """Tell the gateway, however often the connection is lost; `Refusal` if it does not want to know."""
        text = json.dumps(update)
        while True:
            await self._registered.wait()
            link = self._control
            assert link is not None
            try:
                await link.call("JOB.UPDATE", id, text)
                return
            except OSError:
                if self._control is link:
                    self._registered.clear()
                    await link.close()
            except GatewayRefusal as refusal:
                if not str(refusal).startswith("TRYAGAIN"):
                    raise
                await self._ports.clock.sleep(FIRST_PAUSE)

    async def _drain(self, serving: asyncio.Task[None]) -> None:
        """Let the jobs under way finish, then leave; what takes too long is handed back."""
        until = self._ports.clock.monotonic() + self._options.drain_seconds
        hurry = asyncio.create_task(self._hurry.wait())
        if self._pulling is not None:  # never cancelled: a job may be on its way
            patience = max(self._options.drain_seconds, 2 * self._options.pop_seconds)
            await asyncio.wait({self._pulling, serving, hurry}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        working = [*self._jobs.values()]
        if working:
            finishing = asyncio.create_task(asyncio.wait(working))
            left_s = max(0.0, until - self._ports.clock.monotonic())
            await asyncio.wait({finishing, serving, hurry}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finishing.cancel()
        hurry.cancel()
        left = self.active
        if left:
            log.warning("leaving with unfinished jobs, which others will do: %s", ", ".join(left))
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        if self._control is not None and self._registered.is_set():
            with contextlib.suppress(OSError, GatewayRefusal):
                await self._control.call("WORKER.UNREGISTER", self._options.worker_id, *(["FORCE"] if left else []))


def _read_job(popped: bytes) -> dict[str, Any] | None:
    """A job as a pop replies it; None if it has no id by which a report could name it."""
    try:
        job = json.loads(popped.decode())
    except (ValueError, RecursionError):
        return None
    return job if isinstance(job, dict) and isinstance(job.get("job_id"), str) else None


def pause_with_jitter(pause: float, chance: random.Random) -> float:
    """Half of it is certain: a fleet that lost its gateway does not come back all at once."""
    return pause * (0.5 + chance.random() / 2)
