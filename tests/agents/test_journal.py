"""The journal's notes: of all runs of a worker at once, each only by the attempt that has the run."""

from __future__ import annotations

import re
from typing import Any, cast

from holdfast import Holdfast
from holdfast.agents.events.log import write
from holdfast.agents.rows import CallRequestId, NewDelta, StreamingAttempt
from holdfast.app import core_of
from holdfast.kernel.database import Transaction
from holdfast.models.script import say
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import MakeApp
from tests.support.past_kernel import query

RUNS = 40
EPOCH, TOKEN = 1, 7
CHANGING = ("state", "progressed_at", "events", "turns", "token", "epoch", "cost_nano", "interrupted")
SPEAKING = f"update holdfast.run set state = 'streaming', epoch = {EPOCH}, token = {TOKEN}, progressed_at = 5"
CALLING = f"""
insert into holdfast.turn (run, number, model, request_hash, fingerprint, state, epoch, token, started_at)
select id, 1, 'm', 'h', 'f', 'calling', {EPOCH}, {TOKEN}, 1 from holdfast.run
"""


class Counting:
    """A transaction that notes which statements it is asked for."""

    def __init__(self, tx: Transaction, asked: list[str]) -> None:
        self._tx = tx
        self._asked = asked
        self.layers = tx.layers

    async def many(self, statement: Any, /, **parameters: Any) -> Any:
        self._asked.append(statement.name)
        return await self._tx.many(statement, **parameters)

    async def one(self, statement: Any, /, **parameters: Any) -> Any:
        self._asked.append(statement.name)
        return await self._tx.one(statement, **parameters)

    async def run(self, statement: Any, /, **parameters: Any) -> None:
        self._asked.append(statement.name)
        await self._tx.run(statement, **parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


async def test_notes_of_many_runs_are_two_statements_and_a_late_attempt_notes_nothing(
    make_app: MakeApp, place: Place
) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    runs = sorted([(await agent.enqueue(f"{n}")).id for n in range(RUNS)])
    query(place, SPEAKING)
    query(place, CALLING)
    interrupted, late, calm = runs[1], runs[2:4], [runs[0], *runs[4:]]
    query(place, f"update holdfast.run set interrupted = 'stop' where id = '{interrupted}'")
    tokens = {run: TOKEN - (run in late) for run in runs}
    living = [StreamingAttempt(run, EPOCH, tokens[run]) for run in reversed(runs)]
    requests = [CallRequestId(run, 1, EPOCH, tokens[run], f"request of {run}") for run in reversed(runs)]
    asked: list[str] = []

    async def note(tx: Transaction) -> list[str]:
        return await write(cast(Transaction, Counting(tx, asked)), [], requests, living)

    assert await core_of(hf).runtime().transact(note) == [interrupted]
    assert asked == ["note_life", "note_request"]
    progressed = "select id from holdfast.run where progressed_at > 5 order by id"
    assert [id for (id,) in query(place, progressed)] == sorted([interrupted, *calm])
    noted = "select run, request_id from holdfast.turn where request_id is not null order by run"
    assert query(place, noted) == [(run, f"request of {run}") for run in sorted([interrupted, *calm])]


async def test_a_late_attempt_says_nothing(make_app: MakeApp, place: Place) -> None:
    """What a model still says to it would stand among the words of the attempt that has the run now."""
    hf = make_app(embedded=False)
    run = (await hf.agent("a", model=scripted(hf, say("done"))).enqueue("Go")).id
    query(place, SPEAKING)
    told = "select type, data from holdfast.run_event where type = 'delta' order by seq"
    for epoch, token, words in ((EPOCH, TOKEN - 1, "late"), (EPOCH - 1, TOKEN, "of before"), (EPOCH, TOKEN, "mine")):
        delta = NewDelta(run, epoch, token, 1, "delta", f'"{words}"')
        await core_of(hf).runtime().transact(write, [delta], [], [])
    assert [str(data).strip('"') for _, data in query(place, told)] == ["mine"]


async def test_notes_of_no_run_are_no_statement(hf: Holdfast) -> None:
    asked: list[str] = []

    async def note(tx: Transaction) -> list[str]:
        return await write(cast(Transaction, Counting(tx, asked)), [], [], [])

    assert await core_of(hf).runtime().transact(note) == []
    assert asked == []


async def test_no_index_has_what_changes_while_a_run_goes_on(hf: Holdfast, place: Place) -> None:
    """Otherwise each of its ten updates would write an entry into every index."""
    await core_of(hf).runtime().open()
    if place.url.startswith("sqlite"):
        found = query(
            place, "select name, sql from sqlite_master where tbl_name = 'run' and type = 'index' and sql <> ''"
        )
    else:
        found = query(place, "select indexname, indexdef from pg_indexes where tablename = 'run'")
    assert {"run_open", "run_unanswered", "run_queue", "run_listed"} <= {name for name, _ in found}
    for name, text in found:
        assert not set(CHANGING) & set(re.findall(r"\w+", text.partition("(")[2])), name
