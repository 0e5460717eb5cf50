"""The simulated store: the kernel's own statements on SQLite in memory, with an observer at its door.

Every commit is judged before anybody hears of it. Hints are spread late, twice, or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from math import log
from random import Random
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.errors import HoldfastError
from holdfast.kernel import duties, epoch
from holdfast.kernel.database import is_reading
from holdfast.kernel.drivers.sqlite_file import SqliteFile
from holdfast.kernel.leases import expire
from holdfast.kernel.workers import unregister
from tests.simulation.audit import Audit, Violation, traced
from tests.simulation.observer import Observer
from tests.simulation.presence import Signs
from tests.simulation.rare import Rare
from tests.simulation.swarm import Options
from tests.support.snapshots import Change
from tests.support.virtual_time import WALL_EPOCH_US, VirtualLoop

P = ParamSpec("P")
R = TypeVar("R")


class Caller(Protocol):
    """A process that uses the store."""

    name: str
    dead: bool

    def crash(self) -> None: ...

    def freeze(self, seconds: float) -> None:
        """Stop the process for a while, as SIGSTOP does."""


class Commit(NamedTuple):
    at: float
    caller: str
    operation: str
    answer: object
    changes: Sequence[Change]


class Ear(NamedTuple):
    caller: Caller
    heard: Callable[[str], None]
    context: Context


class Store:
    """The server: one file, one clock, and the observer at its door."""

    def __init__(self, loop: VirtualLoop, options: Options, rare: Rare, failed: Callable[[Exception], None]) -> None:
        self.loop = loop
        self.options = options
        self.rare = rare
        self.chance = Random(f"store of {options.seed}")
        self.context = Context()
        self.healed = False
        self.commits = 0
        self.recent: deque[Commit] = deque(maxlen=40)
        self.replaced: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.overheard: Callable[[Callable[..., Any], Any, Any], None] | None = None  # each call and its answer
        self.forgetful: list[Callable[[], None]] = []  # whom to tell that commits were lost
        self.make_audit: Callable[..., Audit] = Audit
        self.signs = Signs(self)
        self.file = SqliteFile(":memory:", now=self.now, durable=False, busy_ms=0)
        self.fail = failed
        self._ears: list[Ear] = []
        self._away_until = self._busy_until = 0.0
        self._replica = b""
        self._failovers = 0

    def now(self) -> int:
        return WALL_EPOCH_US + self.loop.now_us

    @property
    def seconds(self) -> float:
        return self.loop.now_us / 1e6

    def watch(self) -> None:
        """Begin to judge: the tables are there."""
        ceiling = round(self.options.settings.lease_ceiling.total_seconds() * 1e6)
        self.audit = self.make_audit(self.file, ceiling_us=ceiling, gone=self.signs.gone)
        self.observer = Observer(self.audit, self.rare)

    @property
    def away(self) -> bool:
        return self.seconds < self._away_until

    def go_away(self, seconds: float) -> None:
        """Refuse every call for a while; then tell listeners that they may have missed something."""
        self._away_until = max(self._away_until, self.seconds + seconds)
        self.signs.quiet_until = self._away_until + self.options.settings.presence_quiet.total_seconds()
        self.loop.call_later(seconds, self._back, context=self.context)

    def replicate(self) -> None:
        """From now on the other server lags behind."""
        self._replica = self.file.connection.serialize("main")

    def fail_over(self, caller: Caller) -> None:
        """The server is lost with what it had not passed on; who connects to the other one raises the epoch."""
        self.file.connection.deserialize("main", self._replica)
        self._failovers += 1
        self.audit.reread(self.now())
        for forget in self.forgetful:
            forget()
        self.execute(caller, epoch.adopt, (f"simulated {self._failovers}",), {}, again=False)

    def be_busy(self, seconds: float) -> None:
        self._busy_until = max(self._busy_until, self.seconds + seconds)

    def _back(self) -> None:
        if not self.away:
            self._spread([""], [])

    def heal(self) -> None:
        self.healed = True
        self._away_until = self._busy_until = 0.0

    def delay(self) -> float:
        mean = self.options.faults.latency
        if self.seconds < self._busy_until:
            mean = 1.0
        return -mean * log(1 - self.chance.random())

    def fate(self, operation: Callable[..., Any]) -> str:
        """What happens to a request, beside being served."""
        if self.healed:
            return ""
        faults = self.options.faults
        drawn = self.chance.random()
        if operation in (duties.acquire, duties.renew):
            drawn /= 10  # there are few of them, and what follows matters
        for name in ("lost_request", "lost_answer", "stall_at_commit", "crash_at_commit", "slow"):
            drawn -= getattr(faults, name)
            if drawn < 0:
                return name
        return ""

    def hold_up(self) -> float:
        """Long enough for leases or duties to end meanwhile; or not quite."""
        settings = self.options.settings
        longest = max(settings.lease_ttl, settings.duty_ttl).total_seconds()
        return longest * self.chance.choice((0.2, 0.7, 1.3, 2.5))

    def listen(self, ear: Ear) -> None:
        self._ears.append(ear)

    def unlisten(self, caller: Caller, heard: Callable[[str], None]) -> None:
        self._ears = [ear for ear in self._ears if ear.caller is not caller or ear.heard != heard]

    def execute(self, caller: Caller, operation: Callable[..., Any], args: Any, kwargs: Any, *, again: bool) -> Any:
        """Run one transaction and judge it; the answer, or the exception that is the answer."""
        performed = self.replaced.get(operation, operation)
        if operation is expire:
            self.signs.gone.update(self.observer.own(caller, kwargs["gone"]))
        call = partial(performed, self.file, *args, **kwargs)
        (answer,) = self.file.commit_together([call], reading=is_reading(operation))
        changes: list[Change] = []
        if isinstance(answer, Exception):
            self.audit.forget()
        else:
            self.commits += 1
            changes = self.audit.collect()
        name = getattr(operation, "func", operation).__name__
        self.recent.append(Commit(self.seconds, caller.name, name, answer, changes))
        if changes:
            self.loop.trace(f"{caller.name} {name} {traced(changes)}")
        try:
            if isinstance(answer, Exception) and not isinstance(answer, HoldfastError):
                raise Violation("no unknown error", f"{name} raised {answer!r}")
            if operation is unregister:
                self.audit.left.add(args[0])
            if changes or self.audit.unjudged:
                self.audit.judge(changes, self.now(), operation, args)
        except AssertionError as broken:
            self.fail(broken)
        self.observer.saw(caller, operation, args, answer, changes, again=again, now=self.now())
        if self.file.hints:
            self._spread(self.file.hints, changes)
        if self.overheard is not None:
            self.overheard(operation, args, answer)
        return answer

    def _spread(self, notes: Iterable[str], changes: Sequence[Change]) -> None:
        """Tell whoever listens: late, twice, in any order, or not at all."""
        faults, chance = self.options.faults, self.chance
        self._ears = [ear for ear in self._ears if not ear.caller.dead]
        told = False
        for note in dict.fromkeys(notes):
            for ear in self._ears:
                if chance.random() < faults.hint_loss:  # for ever: nothing may depend on hints
                    continue
                told = True
                self.loop.call_later(self.delay(), ear.heard, note, context=ear.context)
                if not self.healed and chance.random() < faults.hint_twice:
                    self.loop.call_later(self.delay() * 10, ear.heard, note, context=ear.context)
        if not told:
            self.observer.unheard(changes)
