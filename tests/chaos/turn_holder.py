"""A process that takes its turn to write to a SQLite file and keeps it: `python -m tests.chaos.turn_holder PATH`."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.kernel.drivers.sqlite_processes import WriterQueue, lock_folder


def main(path: str) -> None:
    with WriterQueue(lock_folder(Path(path)), patience=30).turn():
        print("held", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
