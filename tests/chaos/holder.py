"""A foreign program that keeps a SQLite file locked until it is told to let go: `python -m tests.chaos.holder PATH`."""

from __future__ import annotations

import sys

import apsw


def main(path: str) -> None:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(30_000)
    connection.execute("begin immediate")
    print("held", flush=True)
    sys.stdin.readline()
    connection.execute("rollback")
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
