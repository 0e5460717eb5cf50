"""One run of the benchmark: who takes part, on which stores, and what came out.

A contender that cannot be set up or fails is noted with its reason, and the others go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self, TypeVar

from bench.board import Board
from bench.contenders import CONTENDERS, Contender, StoreKind
from bench.environments import NotRun, python_for, told
from bench.figures import DISTURBED, Absence, Figures, Sample, Subject, Thrown
from bench.progress import Progress
from bench.scale import Scale
from bench.stores import PostgresStores, RedisStores, SqliteStores, Stores

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample that is kept when the run it is of was not disturbed."""

    subject: Subject
    contender: str
    sample: Sample
    note: str


class Session:
    def __init__(self, scale: Scale, names: frozenset[str] | None, progress: Progress) -> None:
        self.scale = scale
        self.figures = Figures()
        self.absences: list[Absence] = []
        self.thrown: list[Thrown] = []
        self.work = ""
        self.took: defaultdict[str, float] = defaultdict(float)  # seconds of each work
        self.round = 0
        self.kept = ExitStack()  # what a work has begun early and leaves running
        self.progress = progress
        self.postgres = PostgresStores()
        self.sqlite = SqliteStores()
        self._redis = RedisStores()
        self._contenders = [each for each in CONTENDERS if names is None or each.name in names]
        self._unfit: dict[str, str] = {}
        self._settled: set[tuple[str, StoreKind]] = set()
        self._taken: list[Taken] | None = None

    def contenders(self, *kinds: StoreKind, only: frozenset[str] | None = None) -> list[Contender]:
        """Those that take part on such stores and could be set up."""
        wanted = [each for each in self._contenders if each.store in kinds and (only is None or each.name in only)]
        return [each for each in wanted if (not each.works or self.work in each.works) and self._fit(each)]

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self._contenders)

    def settle(self, contender: Contender, settings: Mapping[str, int]) -> None:
        """Use these settings for this contender from now on."""
        settled = replace(contender, settings=settings)
        self._contenders = [settled if each is contender else each for each in self._contenders]
        self._settled.add((contender.name, contender.store))

    def unsettled(self, *kinds: StoreKind) -> list[Contender]:
        """Those whose settings have to be tried, and were not yet."""
        wanted = [each for each in self.contenders(*kinds) if each.trials]
        return [each for each in wanted if (each.name, each.store) not in self._settled]

    def stores(self, contender: Contender) -> Stores:
        stores: dict[StoreKind, Stores] = {"postgres": self.postgres, "sqlite": self.sqlite, "redis": self._redis}
        return stores[contender.store]

    def rounds(
        self, contenders: list[Contender], run: Callable[[Contender], None], *, rounds: int | None = None
    ) -> None:
        """Every contender once a round, each round beginning with another; one that fails twice is left out.

        The slow ones take part in the first rounds only. What `run` records in no cell of its own is one cell.
        """
        rounds = rounds or self.scale.rounds
        left = list(contenders)
        failed: set[str] = set()
        for number in range(rounds):
            self.round = number
            shift = number % len(left) if left else 0
            for contender in left[shift:] + left[:shift]:
                if contender.slow and number >= self.scale.slow_rounds:
                    continue
                self.progress.show(f"{self.work}: {contender.name}, round {number + 1} of {rounds}")
                try:
                    self.cell(contender, partial(run, contender))
                except Exception as problem:  # noqa: BLE001  whatever it is, it is not the others' failure
                    self.absent(contender.name, f"round {number + 1}: {told(problem)}")
                    if contender.name in failed:
                        left.remove(contender)
                    failed.add(contender.name)

    def cell(self, contender: Contender, measure: Callable[[], None], *, repeats: int | None = None) -> None:
        """Measure, and keep what is recorded meanwhile; again if others had too much of the machine."""

        def take() -> list[Taken]:
            outer, self._taken = self._taken, []
            try:
                measure()
                return self._taken
            except BaseException:
                self._keep(self._taken)  # what was measured before it failed
                raise
            finally:
                self._taken = outer

        self._keep(self.undisturbed(contender, take, _disturbance, repeats=repeats))

    def cells(self, contender: Contender, *measures: Callable[[], None]) -> None:
        """Cells of one turn that are compared with each other, in the other order every other round."""
        for measure in measures[:: -1 if self.round % 2 else 1]:
            self.cell(contender, measure)

    def undisturbed(
        self,
        contender: Contender,
        take: Callable[[], T],
        disturbance: Callable[[T], float],
        *,
        repeats: int | None = None,
    ) -> T:
        """What `take` answers when nobody disturbs it. After so many repeats, the least disturbed answer."""
        tries = [take()]
        for _ in range(self.scale.repeats if repeats is None else repeats):
            if disturbance(tries[-1]) <= DISTURBED or len(self.thrown) >= self.scale.most_thrown:
                break
            self.progress.say(
                f"{self.work}: {contender.name}: others had {100 * disturbance(tries[-1]):.0f} % of the machine; again"
            )
            self.thrown.append(Thrown(self.work, contender.name, disturbance(tries[-1])))
            tries.append(take())
        return min(tries, key=disturbance)

    def record(self, subject: Subject, contender: str, sample: Sample, *, note: str = "") -> None:
        """In a cell: if it is kept. A subject is recorded once in a round."""
        taken = Taken(subject, contender, sample, note)
        if self._taken is None:
            self._keep([taken])
        else:
            self._taken.append(taken)

    def absent(self, contender: str, reason: str) -> None:
        self.progress.say(f"{self.work}: {contender} is not measured: {reason}")
        self.absences.append(Absence(self.work, contender, reason))

    @contextmanager
    def board(self, *, workers: int, jobs: int = 0) -> Iterator[tuple[Board, str]]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "board"
            yield Board.create(path, workers=workers, jobs=jobs), str(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kept.close()
        for stores in (self._redis, self.sqlite, self.postgres):
            stores.close()

    def _keep(self, taken: Sequence[Taken]) -> None:
        for each in taken:
            self.figures.add(each.subject, each.contender, each.sample, note=each.note)

    def _fit(self, contender: Contender) -> bool:
        """Set its environment up, the first time it is wanted."""
        if contender.name not in self._unfit:
            self.progress.show(f"setting up {contender.name}")
            try:
                python_for(contender)
            except NotRun as problem:
                self._unfit[contender.name] = str(problem)
                self.absent(contender.name, str(problem))
            else:
                self._unfit[contender.name] = ""
        return not self._unfit[contender.name]


def _disturbance(taken: Sequence[Taken]) -> float:
    return max((each.sample.disturbance for each in taken), default=0.0)
