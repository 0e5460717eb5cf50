"""A process that claims until its pool is empty: `python -m tests.facades.claiming URL WORKER`, begun by a line."""

from __future__ import annotations

import sys

from holdfast.facades.flatagents import create_backends


def main(url: str, worker_id: str) -> None:
    kind = "redis" if url.startswith("redis") else "sqlite"
    work = create_backends({"registration": kind, "work": kind, "work_path": url, "registration_path": url}).work
    pool = work.pool("papers")
    pool.size()
    print("ready", flush=True)
    sys.stdin.readline()
    while (item := pool.claim(worker_id)) is not None:
        assert pool.complete(item.id, item.data)
        print(item.id, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
