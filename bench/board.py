"""The board: a file that all processes of one run map, to count and time jobs without a word between them.

A worker counts in its own slot, so nobody locks. Times are of the system's monotonic clock, which all processes
share. Standard library only: peers read this in environments of their own.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

_WORD = 8
_HEAD = 2  # how many workers, how many jobs


class Board:
    """`create` makes the file; every process then opens it by its path."""

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._map).cast("q")
        self._workers, self._jobs = self._words[0], self._words[1]
        self._sent = _HEAD + self._workers
        self._started = self._sent + self._jobs

    @classmethod
    def create(cls, path: Path, *, workers: int, jobs: int = 0) -> Board:
        """A new board. With `jobs`, it also holds when each of so many jobs was sent and started."""
        words = _HEAD + workers + 2 * jobs
        path.write_bytes(bytes(words * _WORD))
        with path.open("r+b") as file:
            file.write(workers.to_bytes(_WORD, "little") + jobs.to_bytes(_WORD, "little"))
        return cls(path)

    def ran(self, slot: int, n: int) -> None:
        """Job `n` starts now, in the worker of this slot."""
        if n < self._jobs:
            self._words[self._started + n] = time.monotonic_ns()
        self._words[_HEAD + slot] += 1

    def sent(self, n: int) -> None:
        """The call that enqueued job `n` has just returned."""
        self._words[self._sent + n] = time.monotonic_ns()

    @property
    def counts(self) -> list[int]:
        """How many jobs each worker has run."""
        return self._words[_HEAD : _HEAD + self._workers].tolist()

    @property
    def total(self) -> int:
        return sum(self.counts)

    def delays(self) -> list[float]:
        """From enqueue-return to start, in milliseconds, for the jobs that have both. May be below zero."""
        sent = self._words[self._sent : self._started].tolist()
        started = self._words[self._started : self._started + self._jobs].tolist()
        return [(begun - gone) / 1e6 for gone, begun in zip(sent, started, strict=True) if gone and begun]
