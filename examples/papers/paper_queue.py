"""The crawler's own table as a pool of work: `paper_queue`, which was there before any worker was.

A class with the methods of `WorkBackend` and one with those of `WorkPool` are all that hooks need. Every change is one
statement that names the claim, so two workers never have one paper, and one that was given up can change nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw

from holdfast.facades.flatagents import WorkItem

TABLE = """
create table if not exists paper_queue (
    id integer primary key, title text not null, abstract text, status text not null default 'pending',
    claimed_by text, attempts integer not null default 0, max_retries integer not null default 3,
    summary_path text, error text)
"""
CLAIM = """
update paper_queue set status = 'claimed', claimed_by = :worker
where id = (
    select id from paper_queue
    where status = 'pending' or (status = 'claimed' and claimed_by = :worker) -- it has it already, after a crash
    order by status, id limit 1)
returning id, title, abstract, attempts, max_retries
"""
COMPLETE = """
update paper_queue set status = 'done', attempts = attempts + 1, summary_path = :path, error = null
where id = :id and status = 'claimed' and claimed_by = coalesce(:worker, claimed_by)
"""
FAIL = """
update paper_queue set status = iif(attempts + 1 < max_retries, 'pending', 'poisoned'), attempts = attempts + 1,
    claimed_by = null, error = :error
where status = 'claimed' and claimed_by = coalesce(:worker, claimed_by) and id = coalesce(:id, id)
"""


class PaperQueue:
    """A `WorkBackend` with one pool, whatever it is called."""

    def __init__(self, file: Path) -> None:
        self.papers = PaperPool(file)

    def pool(self, name: str) -> "PaperPool":
        return self.papers


class PaperPool:
    """The papers that wait. Their summaries are files beside the database."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ask(TABLE)

    def _ask(self, statement: str, **values: Any) -> list[Any]:
        return list(self._open().execute(statement, values))

    def _open(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._file))
        connection.set_busy_timeout(10_000)  # the workers write to the same file
        return connection

    def push(self, item: Any, options: Mapping[str, Any] | None = None) -> str:
        statement = "insert into paper_queue (title, abstract) values (:title, :abstract) returning id"
        ((id,),) = self._ask(statement, title=item["title"], abstract=item.get("abstract"))
        return str(id)

    def claim(self, worker_id: str) -> WorkItem | None:
        for id, title, abstract, attempts, tries in self._ask(CLAIM, worker=worker_id):
            paper = {"title": title, "abstract": abstract}
            return WorkItem(str(id), paper, worker_id, attempts, tries, "claimed")
        return None

    def complete(self, item_id: str, result: Any = None, *, worker_id: str | None = None) -> bool:
        """False: it was taken back from this worker, and its summary is dropped."""
        path = self._file.parent / "summaries" / f"{item_id}.json"
        path.parent.mkdir(exist_ok=True)
        connection = self._open()
        with connection:  # the row is committed after the file is there
            connection.execute(COMPLETE, {"id": item_id, "worker": worker_id, "path": str(path)})
            if not connection.changes():
                return False
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps(result))
            draft.replace(path)
        return True

    def fail(self, item_id: str, error: str | None = None, *, worker_id: str | None = None) -> bool:
        connection = self._open()
        connection.execute(FAIL, {"id": item_id, "worker": worker_id, "error": error})
        return connection.changes() > 0

    def release_by_worker(self, worker_id: str) -> int:
        """Its worker has died. That is a try too: a paper that kills its workers is poisoned."""
        connection = self._open()
        connection.execute(FAIL, {"id": None, "worker": worker_id, "error": "its worker has died"})
        return connection.changes()

    def size(self) -> int:
        return self._count("pending")

    def claimed(self) -> int:
        return self._count("claimed")

    def _count(self, status: str) -> int:
        ((count,),) = self._ask("select count(*) from paper_queue where status = :status", status=status)
        return int(count)
