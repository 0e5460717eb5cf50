"""Runs seeds and tells what happened."""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from holdfast.workers.telemetry import attempts_log as attempts
from tests.simulation.agents import AgentWorld
from tests.simulation.audit import Violation
from tests.simulation.brokers import BrokerWorld
from tests.simulation.machines import MachineWorld
from tests.simulation.pools import PoolWorld
from tests.simulation.rare import Rare
from tests.simulation.resp import RespWorld
from tests.simulation.swarm import draw
from tests.simulation.world import World
from tests.support.virtual_time import VirtualLoop

Sabotage = Callable[[World], None]
Kind = Literal["jobs", "agents", "pools", "brokers", "machines", "resp"]
WORLDS: Final[Mapping[Kind, Callable[..., World]]] = {
    "jobs": World,
    "agents": AgentWorld,
    "pools": PoolWorld,
    "brokers": BrokerWorld,
    "machines": MachineWorld,
    "resp": RespWorld,
}


@dataclass(frozen=True, slots=True)
class Run:
    """One seed, run once."""

    seed: int
    kind: Kind
    problem: str  # empty: all was well
    report: str
    trace_hash: str
    virtual_s: float
    cpu_s: float
    callbacks: int
    commits: int
    jobs: int
    rare: Rare = field(default_factory=Rare)


def simulate(
    seed: int,
    *,
    sabotage: Sabotage | None = None,
    chaos_s: float | None = None,
    kind: Kind = "jobs",
) -> Run:
    """Run the world of a seed to its end or to its first violation."""
    options = draw(seed, chaos_s=chaos_s)
    begun = time.process_time()
    loop = VirtualLoop(Random(f"schedule of {seed}"))
    world = WORLDS[kind](loop, options)
    if sabotage is not None:
        sabotage(world)
    problem: BaseException | None = None
    with _errors_logged(world):
        loop.create_task(world.run())
        try:
            loop.run_until_complete(world.verdict)
        except Exception as broken:  # noqa: BLE001  the verdict, or a loop that cannot go on
            problem = broken
        trace, virtual = loop.trace_hash(), loop.now_us / 1e6
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of the dead, never awaited
            loop.close()
    if problem is None and loop.failures:
        problem = Violation("no unhandled error", str(loop.failures[0]))
    world.store.file.close()
    return Run(
        seed=seed,
        kind=kind,
        problem="" if problem is None else _told(problem),
        report="" if problem is None else _report(problem, world, kind, sabotage),
        trace_hash=trace,
        virtual_s=virtual,
        cpu_s=time.process_time() - begun,
        callbacks=loop.executed,
        commits=world.store.commits,
        jobs=len(world.store.audit.jobs),
        rare=world.rare,
    )


class _Alarm(logging.Handler):
    """An error in the log is a failure: the worker met something that it does not know. It knows that jobs fail."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.loop.is_closed():
            return  # what the dead say when they are disposed of
        if record.name == attempts.name:
            return
        problem = record.exc_info[1] if record.exc_info else None
        told = Violation("no unknown error", record.getMessage())
        told.__cause__ = problem
        self._world.fail(told)


@contextmanager
def _errors_logged(world: World) -> Iterator[None]:
    log = logging.getLogger("holdfast")
    alarm, level, propagate = _Alarm(world), log.level, log.propagate
    log.addHandler(alarm)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(alarm)
        log.setLevel(level)
        log.propagate = propagate


def _told(problem: BaseException) -> str:
    return str(problem) or repr(problem)


def _report(problem: BaseException, world: World, kind: Kind, sabotage: Sabotage | None) -> str:
    options = world.options
    lines = [f"seed {options.seed} at {world.loop.now_us / 1e6:.6f} s: {_told(problem)}"]
    if not isinstance(problem, Violation) or problem.__cause__ is not None:
        lines += ["", *traceback.format_exception(problem)]
    lines += ["", "options:", str(options), "", "last commits:"]
    for commit in world.store.recent:
        answer = repr(commit.answer)
        lines.append(f"  {commit.at:.6f} {commit.caller} {commit.operation} -> {answer[:160]}")
        lines += [f"      {str(change)[:1000]}" for change in commit.changes]
    planted = "" if sabotage is None else "   (and plant the mutant)"
    lines += ["", f"replay: make sim SEEDS=1 SEED={options.seed} WORLD={kind}{planted}"]
    return "\n".join(lines)
