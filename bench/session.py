"""One run of the benchmark: who takes part, on which stores, and what came out.

A contender that cannot be set up or fails is noted with its reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from bench.board import Board
from bench.contenders import CONTENDERS, Contender, StoreKind
from bench.environments import NotRun, python_for, told
from bench.figures import Absence, Figures, Sample, Subject
from bench.progress import Progress
from bench.scale import Scale
from bench.stores import PostgresStores, RedisStores, SqliteStores, Stores


class Session:
    def __init__(self, scale: Scale, names: frozenset[str] | None, progress: Progress) -> None:
        self.scale = scale
        self.figures = Figures()
        self.absences: list[Absence] = []
        self.work = ""
        self.progress = progress
        self.postgres = PostgresStores()
        self.sqlite = SqliteStores()
        self._redis = RedisStores()
        self._contenders = [each for each in CONTENDERS if names is None or each.name in names]
        self._unfit: dict[str, str] = {}

    def contenders(self, *kinds: StoreKind, only: frozenset[str] | None = None) -> list[Contender]:
        """Those that take part on such stores and could be set up."""
        wanted = [each for each in self._contenders if each.store in kinds and (only is None or each.name in only)]
        return [each for each in wanted if self._fit(each)]

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self._contenders)

    def settle(self, contender: Contender, **settings: int) -> None:
        """Use other settings for this contender from now on."""
        settled = replace(contender, settings={**contender.settings, **settings}, batches=())
        self._contenders = [settled if each is contender else each for each in self._contenders]

    def stores(self, contender: Contender) -> Stores:
        stores: dict[StoreKind, Stores] = {"postgres": self.postgres, "sqlite": self.sqlite, "redis": self._redis}
        return stores[contender.store]

    def rounds(
        self, contenders: list[Contender], run: Callable[[Contender], None], *, rounds: int | None = None
    ) -> None:
        """Every contender once a round, each round beginning with another; one that fails twice is left out."""
        rounds = rounds or self.scale.rounds
        left = list(contenders)
        failed: set[str] = set()
        for number in range(rounds):
            shift = number % len(left) if left else 0
            for contender in left[shift:] + left[:shift]:
                self.progress.show(f"{self.work}: {contender.name}, round {number + 1} of {rounds}")
                try:
                    run(contender)
                except Exception as problem:  # noqa: BLE001  whatever it is, it is not the others' failure
                    self.absent(contender.name, f"round {number + 1}: {told(problem)}")
                    if contender.name in failed:
                        left.remove(contender)
                    failed.add(contender.name)

    def record(self, subject: Subject, contender: str, sample: Sample, *, note: str = "") -> None:
        self.figures.add(subject, contender, sample, note=note)

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
        for stores in (self._redis, self.sqlite, self.postgres):
            stores.close()

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
