"""A process that races for a lease: `python -m tests.facades.racing URL RUN OWNER`, released by a line on its input."""

from __future__ import annotations

import sys

from holdfast.facades.universal_agent.state import acquire_run_lease, connect_runtime_db, get_run


def main(url: str, run_id: str, owner: str) -> None:
    with connect_runtime_db(url) as conn:
        get_run(conn, run_id)
        print("ready", flush=True)
        sys.stdin.readline()
        print(acquire_run_lease(conn, run_id, owner, 60), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
