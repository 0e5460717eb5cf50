"""A process that reads a SQLite file as it was, until it is told to stop: `python -m tests.chaos.reader PATH`."""

from __future__ import annotations

import sys

import apsw


def main(path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("begin")
    connection.execute("select count(*) from job").fetchall()
    print("reading", flush=True)
    sys.stdin.readline()
    connection.execute("rollback")
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
