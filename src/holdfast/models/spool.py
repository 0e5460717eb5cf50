"""Where scripted batches are kept: in this process, or in a folder that every process of the machine's user shares.

A batch is whole or not there at all: its file gets its name when everything is in it. Nothing is ever changed after
that; a cancel is a file of its own beside it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.models.batches import LASTS_US, BatchStatus

# The witness: one line of JSON for each call when it arrives and when it ends, independent of what the callers store.
#
# A line is written by one `write` to a file opened for appending, so that several processes can share the file and a
# crash loses no line that began before it.


_REMEMBERED = 100_000


class Witness:
    """Lines in memory, the latest hundred thousand, and in a file if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self.lines: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, **line: Any) -> None:
        self.lines.append(line)
        if self._file is not None:
            os.write(self._file, json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_witness(path: Path) -> list[dict[str, Any]]:
    """The lines of a witness file; none if nobody has called yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


_OLD = 2 * 24 * 3600  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatch:
    """What is known of a kept batch besides its results."""

    id: str
    call: str
    created_us: int
    ends_us: int
    counts: dict[str, int]
    """Its results by type, which it shows only when it has ended."""
    canceled_us: int | None = None

    def status(self, now_us: int) -> BatchStatus:
        ends = self.ends_us if self.canceled_us is None else min(self.ends_us, self.canceled_us)
        ended = now_us >= ends
        none = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        return BatchStatus(
            id=self.id,
            status="ended" if ended else "in_progress",
            created_us=self.created_us,
            expires_us=self.created_us + LASTS_US,
            ended_us=ends if ended else None,
            counts={**none, **(self.counts if ended else {"processing": sum(self.counts.values())})},
        )


class Shelf(Protocol):
    """Where batches are kept. Unknown ids are `KeyError`."""

    def keep(self, batch: KeptBatch, lines: Sequence[bytes]) -> None: ...

    def get(self, id: str) -> KeptBatch: ...

    def every(self) -> list[KeptBatch]: ...

    def cancel(self, id: str, at_us: int) -> KeptBatch:
        """Note that it was asked to end; the first time counts."""

    def lines(self, id: str) -> Iterator[bytes]: ...


class MemoryShelf:
    """A shelf of this process, for tests. Models that are given the same one see each other's batches."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[KeptBatch, list[bytes]]] = {}

    def keep(self, batch: KeptBatch, lines: Sequence[bytes]) -> None:
        self._kept[batch.id] = batch, list(lines)

    def get(self, id: str) -> KeptBatch:
        return self._kept[id][0]

    def every(self) -> list[KeptBatch]:
        return [batch for batch, _ in self._kept.values()]

    def cancel(self, id: str, at_us: int) -> KeptBatch:
        batch, lines = self._kept[id]
        if batch.canceled_us is None:
            batch = replace(batch, canceled_us=at_us)
            self._kept[id] = batch, lines
        return batch

    def lines(self, id: str) -> Iterator[bytes]:
        return iter(self._kept[id][1])


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Spool:
    """A shelf in a folder: `ID.jsonl` is a batch, its first line what is known of it, each further one a result."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is made when the first batch is kept; none: one of this user among the temporary files."""
        self._own = folder is None
        self._folder = folder or Path(tempfile.gettempdir(), f"holdfast-batches-{os.getuid()}")

    def keep(self, batch: KeptBatch, lines: Sequence[bytes]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_owner()
        path = self._path(batch.id)
        known = asdict(batch)
        del known["canceled_us"]
        self._write(path, [json.dumps(known).encode() + b"\n", *lines])
        self._remove_old(path.stat().st_mtime)

    def get(self, id: str) -> KeptBatch:
        try:
            with self._path(id).open("rb") as file:
                batch = KeptBatch(**json.loads(file.readline()))
        except FileNotFoundError:
            raise KeyError(id) from None
        with suppress(FileNotFoundError):
            batch = replace(batch, canceled_us=int(self._path(id, "canceled").read_text()))
        return batch

    def every(self) -> list[KeptBatch]:
        found: list[KeptBatch] = []
        for path in self._folder.glob("*.jsonl"):
            with suppress(KeyError):  # removed since, for its age
                found.append(self.get(path.stem))
        return found

    def cancel(self, id: str, at_us: int) -> KeptBatch:
        if self.get(id).canceled_us is None:
            self._write(self._path(id, "canceled"), [str(at_us).encode()])
        return self.get(id)

    def lines(self, id: str) -> Iterator[bytes]:
        try:
            file = self._path(id).open("rb")
        except FileNotFoundError:
            raise KeyError(id) from None
        with file:
            file.readline()
            yield from file

    def _path(self, id: str, suffix: str = "jsonl") -> Path:
        if not id.isidentifier():  # letters, digits and _: no way out of the folder
            raise KeyError(id)
        return self._folder / f"{id}.{suffix}"

    def _write(self, path: Path, parts: Sequence[bytes]) -> None:
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        with open(unfinished, "wb", opener=_private) as file:
            file.writelines(parts)
        unfinished.replace(path)

    def _check_owner(self) -> None:
        """Others may write among the temporary files, and could have been there first."""
        if self._own and (self._folder.is_symlink() or self._folder.stat().st_uid != os.getuid()):
            raise UsageError(f"{self._folder} belongs to somebody else: remove it, or give scripted models a folder.")

    def _remove_old(self, now: float) -> None:
        """By the file system's time, not the model's: that of a test may be years ahead of everybody else's."""
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < now - _OLD:
                    path.unlink()
