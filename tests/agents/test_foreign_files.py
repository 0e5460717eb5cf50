"""SQLite files of strangers: what they define where Holdfast has tables is refused before it is read."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnfit
from holdfast.kernel.drivers.sqlite_file import SqliteFile

HOSTILE = {
    "a view instead of a table": "alter table run rename to run_before; create view run as select * from run_before",
    "a view that never ends": """
        alter table agent rename to agent_before;
        create view agent as with recursive n (x) as (select 1 union all select x + 1 from n) select x as id from n
    """,
    "a view of ours with another text": "drop view job_now; create view job_now as select * from job",
    "a trigger on a table": "create trigger t after insert on job begin delete from session; end",
    "a trigger on a view": "create trigger t instead of insert on job_now begin delete from session; end",
    "a trigger of ours with another text": """
        drop trigger job_ready; create trigger job_ready after insert on job begin delete from session; end
    """,
    "a virtual table": "drop table message; create virtual table message using fts5(id, body)",
    "a column that computes, behind a comment": "alter table session add column x text as/**/(hex(zeroblob(10000000)))",
    "an index that computes": "create index session_odd on session (hex(key))",
    "a column that computes": "alter table session add column x text as (hex(zeroblob(100000000)))",
}


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    async with Holdfast(f"sqlite:///{path}", embedded=False) as hf:
        await hf.session("chat")
    return path


def change(path: Path, text: str) -> None:
    connection = apsw.Connection(str(path))
    for _ in connection.execute(f"pragma legacy_alter_table = on; {text}"):
        pass
    connection.close()


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_file_that_runs_what_a_stranger_wrote_is_refused(file: Path, what: str) -> None:
    change(file, HOSTILE[what])
    with pytest.raises(StoreUnfit, match="no release of Holdfast made it"):
        async with Holdfast(f"sqlite:///{file}", embedded=False):
            pytest.fail("it was opened")


@pytest.mark.parametrize("what", HOSTILE)
def test_what_came_since_the_last_look_is_refused_too(file: Path, what: str) -> None:
    opened = SqliteFile(str(file), now=lambda: 0, durable=False, busy_ms=1_000)
    try:
        assert opened.stored_schema() is not None
        change(file, HOSTILE[what])
        with pytest.raises(StoreUnfit, match="no release of Holdfast made it"):
            opened.stored_schema()
    finally:
        opened.close()


@pytest.mark.parametrize("what", ["a view instead of a table", "a virtual table", "a column that computes"])
async def test_tables_of_a_newer_release_are_tables_too(file: Path, what: str) -> None:
    change(file, f"{HOSTILE[what]}; update schema set version = version + 1")
    with pytest.raises(StoreUnfit, match="no release of Holdfast made it"):
        async with Holdfast(f"sqlite:///{file}", embedded=False):
            pytest.fail("it was opened")


async def test_views_of_a_newer_release_may_be_others(file: Path) -> None:
    change(file, f"{HOSTILE['a view of ours with another text']}; update schema set version = version + 1")
    async with Holdfast(f"sqlite:///{file}", embedded=False) as hf:
        assert len(await hf.sessions.list()) == 1


async def test_tables_and_views_of_the_program_itself_may_be_there(file: Path) -> None:
    change(
        file,
        """
        create table orders (id integer primary key, n integer); create view totals as select sum(n) from orders;
        create trigger t after insert on orders begin update orders set n = 1; end;
        create index session_more on session (tenant, key)
        """,
    )
    async with Holdfast(f"sqlite:///{file}", embedded=False) as hf:
        assert len(await hf.sessions.list()) == 1


async def test_what_a_file_defines_calls_no_function_of_ours(file: Path) -> None:
    change(file, "create view note as select hint('hello') as told")
    opened = SqliteFile(str(file), now=lambda: 0, durable=False, busy_ms=1_000)
    try:
        with pytest.raises(apsw.SQLError, match="unsafe use of hint"):
            opened.execute("select told from note")
        assert opened.hints == []
    finally:
        opened.close()
