"""Runs and sessions made in the caller's transaction: there when it commits, and never there if not."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.models.script import Script, say
from tests.support.apps import MakeApp, working
from tests.transactions.conftest import Query
from tests.transactions.libraries import Library

TABLES = ("job", "agent", "agent_version", "session", "run", "message", "run_event", "idempotency")


def greeter(app: Holdfast) -> Agent[str]:
    app.script("greet", Script(say("Hello.")))
    return app.agent("greeter", model="scripted:greet", metadata={"of": "the caller's"})


async def in_transaction(library: Library, of: Any, verb: str, *args: Any, commit: bool = True, **options: Any) -> Any:
    """Call a verb of an agent or of the app, which has those for code without a loop at `hf.sync`."""

    def called(tx: Any, suffix: str) -> Any:
        verb_here = getattr(of.sync, verb) if suffix and isinstance(of, Holdfast) else getattr(of, verb + suffix)
        return verb_here(*args, tx=tx, **options)

    return await library.call(called, commit)


async def test_a_committed_run_is_played(library: Library, hf: Holdfast, query: Query) -> None:
    agent = greeter(hf)
    run: Run[str] = await in_transaction(
        library, agent, "enqueue", "50% :a 'q' $1", session="s", key="k", variables={"n": 1}, metadata={"by": "Ann"}
    )
    assert query("select note from ledger") == [("written by the caller",)]
    row = await run.refresh()
    assert (row.state, row.agent_name, row.session) == ("pending", "greeter", (await hf.sessions.get("s")).id)
    async with working(hf):
        assert await run.text() == "Hello."
    assert [event.seq for event in await run.events()] == list(range(1, (await run.refresh()).events + 1))
    again = await in_transaction(
        library, agent, "enqueue", "50% :a 'q' $1", session="s", key="k", variables={"n": 1}, metadata={"by": "Ann"}
    )
    assert again.id == run.id


async def test_nothing_is_left_of_a_run_that_is_rolled_back(library: Library, hf: Holdfast, query: Query) -> None:
    agent = greeter(hf)
    await in_transaction(library, agent, "enqueue", "No", session="s", key="k", commit=False)
    await in_transaction(library, agent, "enqueue", "No", commit=False)
    await in_transaction(library, hf, "session", "s", metadata={"a": 1}, commit=False)
    for table in TABLES:
        assert query(f"select count(*) from holdfast.{table}") == [(0,)], table
    run: Run[str] = await in_transaction(library, agent, "enqueue", "Yes", session="s", key="k")
    async with working(hf):
        assert await run.text() == "Hello."


async def test_a_session_and_a_run_in_it_come_together(library: Library, make_app: MakeApp, query: Query) -> None:
    hf = make_app(embedded=False)
    agent = greeter(hf)

    def both(tx: Any, suffix: str) -> Any:
        if suffix:
            session: Session = hf.sync.session("s", metadata={"user": "Ann"}, tx=tx)
            return agent.enqueue_sync("Hi", session=session, tx=tx)

        async def awaited() -> Run[str]:
            session = await hf.session("s", metadata={"user": "Ann"}, tx=tx)
            return await agent.enqueue("Hi", session=session, tx=tx)

        return awaited()

    gone = await library.call(both, commit=False)
    assert query("select count(*) from holdfast.session") == [(0,)]
    run: Run[str] = await library.call(both)
    assert run.id != gone.id
    async with working(hf):
        assert await run.text() == "Hello."
    assert await hf.sessions.count(metadata={"user": "Ann"}) == 1
