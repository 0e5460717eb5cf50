"""The views `worker_registry` and `work_pool`: what SQL of the document sees, with exactly the columns it prints."""

from __future__ import annotations

import json
import re

from holdfast.facades.flatagents import WorkerRegistration, create_backends
from tests.conftest import Place
from tests.facades.test_operators import asked

PRINTED = {
    "worker_registry": """
        worker_id TEXT PRIMARY KEY, status TEXT NOT NULL DEFAULT 'active', host TEXT, pid INTEGER,
        capabilities TEXT, pool_id TEXT, started_at TEXT NOT NULL, last_heartbeat TEXT NOT NULL, current_task_id TEXT
    """,
    "work_pool": """
        id TEXT PRIMARY KEY, pool_name TEXT NOT NULL, data TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending',
        claimed_by TEXT, claimed_at TEXT, attempts INTEGER NOT NULL DEFAULT 0, result TEXT, error TEXT,
        created_at TEXT NOT NULL
    """,
}


def columns(table: str) -> list[str]:
    return re.findall(r"(\w+) (?:TEXT|INTEGER)", PRINTED[table])


def test_the_printed_tables_are_views_with_their_columns(place: Place) -> None:
    kind = "sqlite" if place.url.startswith("sqlite") else "postgres"
    registry, work = create_backends({"registration": kind, "work": kind, "work_path": place.url})
    pool = work.pool("papers")
    registry.register(WorkerRegistration("w1", "box", 42, ["gpu"], "2026-01-01T00:00:00Z", "papers"))
    registry.register(WorkerRegistration("w2"))
    registry.update_status("w2", "terminated")
    done, bad, held = (pool.push({"n": n}, {"max_retries": 1}) for n in range(3))
    pool.push({"n": 3})
    for id in (done, bad, held):
        assert pool.claim("w1")
        if id == done:
            pool.complete(id, {"ok": True})
        elif id == bad:
            pool.fail(id, "broken")
    pool.claim("nobody registered")
    workers = asked(place, "select * from worker_registry order by worker_id")
    assert [list(row) for row in workers] == [columns("worker_registry")] * 2
    assert [(row["worker_id"], row["status"]) for row in workers] == [("w1", "active"), ("w2", "terminated")]
    first = workers[0]
    assert (first["host"], first["pid"], first["pool_id"], first["current_task_id"]) == ("box", 42, "papers", held)
    assert (first["started_at"], json.loads(first["capabilities"])) == ("2026-01-01T00:00:00Z", ["gpu"])
    items = asked(place, "select * from work_pool where pool_name = 'papers'")
    items.sort(key=lambda row: json.loads(row["data"])["n"])  # they may have been pushed within one second
    assert [list(row) for row in items] == [columns("work_pool")] * 4
    assert [(row["status"], row["claimed_by"], row["attempts"]) for row in items] == [
        ("done", None, 1),
        ("poisoned", None, 1),
        ("claimed", "w1", 0),
        ("claimed", "nobody registered", 0),
    ]
    assert (json.loads(items[0]["data"]), json.loads(items[0]["result"])) == ({"n": 0}, {"ok": True})
    assert items[1]["error"] == "broken"
    registry.close()  # type: ignore[attr-defined]
