"""Moves on SQLite: a statement that moves rows is an insert and a delete, and both choose the same rows.

So both have the same condition. Each half has its own plan: here the plans differ as much as they can, because the
index by which the first half found its rows is replaced by one that lists equal rows the other way round.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from holdfast.agents.statements import GROUPS as AGENTS
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Statement, catalogue
from holdfast.kernel.statements import GROUPS as KERNEL
from holdfast.kernel.statements import LanesSql, WaitingSql
from holdfast.settings import Settings

NOW_US = 1_800_000_000_000_000
JOBS = 9
WOKEN = 4

# Nothing but the number of a job tells it apart from the others, so only a total order chooses between them.
FILL = """
with recursive n (seq) as (select 1 union all select seq + 1 from n where seq < {jobs})
insert into later (seq, route, slot, token, priority, attempts, rescues, state, due_at, channel, lane)
select seq, 1, 0, 0, 100, 0, 0, {state}, {due_at}, {channel}, {lane} from n
"""
WAITING = FILL.format(jobs=JOBS, state="'waiting'", due_at=NOW_US, channel="'door'", lane="null")
BLOCKED = FILL.format(jobs=JOBS, state="'blocked'", due_at="null", channel="null", lane="'narrow'")
MOVES: dict[Statement, str] = {LanesSql.unblock: BLOCKED, WaitingSql.wake: WAITING, WaitingSql.wake_some: WAITING}
INSERT = re.compile(r"insert into (?:ready|later) \(.*?\) select .*? from (?:ready|later)(?: [a-z])? where (.*)")
DELETE = re.compile(r"delete from (?:ready|later) where (.*?)(?: returning .*)?")
OTHER_WAY_ROUND = """
drop index later_due;
drop index later_channel;
drop index later_blocked;
create index other_due on later (due_at, seq desc) where due_at is not null;
create index other_channel on later (channel, seq desc) where channel is not null;
create index other_blocked on later (lane, priority, slot, seq desc) where state = 'blocked'
"""


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[apsw.Connection]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: NOW_US, hint=lambda *_: 1)
    yield connection
    connection.close()


def test_the_moves_that_a_limit_bounds_are_tested_here() -> None:
    bounded = {
        statement
        for statement, rendered in catalogue((*KERNEL, *AGENTS), "sqlite", "").items()
        if len(rendered.texts) == 2
        and rendered.texts[1].startswith("delete from later")
        and all(" limit :" in text for text in rendered.texts)
    }
    assert bounded == MOVES.keys()


def test_both_halves_of_a_move_have_the_same_condition() -> None:
    moves = {
        statement: (insert[1], delete[1])
        for statement, rendered in catalogue((*KERNEL, *AGENTS), "sqlite", "").items()
        if len(rendered.texts) == 2
        and (insert := INSERT.fullmatch(plain(rendered.texts[0])))
        and (delete := DELETE.fullmatch(plain(rendered.texts[1])))
    }
    assert moves.keys() > MOVES.keys()
    assert len(moves) > 7
    for statement, (written, removed) in moves.items():
        assert written == removed, statement


def plain(text: str) -> str:
    """In one line, and without the short names of tables."""
    return " ".join(re.sub(r"\b[a-z]\.(?=\w)", "", text).split()).replace("( ", "(")


@pytest.mark.parametrize("statement", MOVES, ids=lambda statement: statement.name)
async def test_both_halves_of_a_move_choose_the_same_rows_by_any_plan(
    connection: apsw.Connection, statement: Statement
) -> None:
    insert, delete = catalogue(KERNEL, "sqlite", "")[statement].texts
    parameters = {"limit": WOKEN, "n": WOKEN, "channel": "door", "name": "narrow"}
    list(connection.execute(MOVES[statement]))
    list(connection.execute(insert, parameters))
    list(connection.execute(OTHER_WAY_ROUND))
    removed = {seq for seq, _ in connection.execute(delete, parameters)}
    ready = {seq for (seq,) in connection.execute("select seq from ready")}
    later = {seq for (seq,) in connection.execute("select seq from later")}
    assert removed == ready
    assert len(ready) == WOKEN
    assert (ready & later, ready | later) == (set(), set(range(1, JOBS + 1)))
