"""A deleted session leaves nothing of its own, and all that is others'."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.agents.rows import NewBlock, NewMessage
from holdfast.agents.statements import MessagesSql
from holdfast.app import core_of
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.database import Transaction
from holdfast.models.script import call, say
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import MakeApp, eventually
from tests.support.past_kernel import query

LARGE = "A" * 100_000


async def _jobs_ended(place: Place) -> bool:
    return query(place, "select count(*) from holdfast.job_now where finished_at is null") == [(0,)]


async def test_a_deleted_session_leaves_nothing(hf: Holdfast, place: Place) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    inner = hf.agent("inner", model=scripted(hf, say("inside")))
    model = scripted(hf, call("look"), call("inner", task="x"), say("done"))
    agent = hf.agent("a", model=model, tools=[look], agents=[inner])
    await agent.run(LARGE, session="s", key="k")
    await eventually(lambda: _jobs_ended(place))
    await (await hf.session("s")).delete()
    ours = ("blob", "block", "message", "run", "run_event", "tool_call", "turn", "idempotency")
    for table in (*ours, "job", "ready", "later", "lease", "ended", "attempt", "family", "progress"):
        assert query(place, f"select count(*) from holdfast.{table}") == [(0,)], table


async def test_a_deleted_session_leaves_what_others_hold(hf: Holdfast, place: Place) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run(LARGE, session="s", key="k")
    await agent.run(LARGE, session="other", key="other's")
    assert query(place, "select count(*) from holdfast.blob") == [(1,)]
    await (await hf.session("s")).delete()
    assert [m.text for m in await (await hf.session("other")).messages()] == [LARGE, "done"]
    assert query(place, "select key from holdfast.idempotency") == [("other's",)]
    await (await hf.session("other")).delete()
    assert query(place, "select count(*) from holdfast.blob") == [(0,)]


async def test_a_block_is_not_lost_to_a_session_that_is_deleted_meanwhile(hf: Holdfast, place: Place) -> None:
    """Who names a blob while another would delete it has it afterwards. A file has one writer: nobody meets there."""
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run(LARGE, session="s")
    ((hash, body),) = query(place, "select hash, cast(body as text) from holdfast.blob")
    named, delete = asyncio.Event(), asyncio.Event()
    on_a_file = place.url.startswith("sqlite")

    async def name(tx: Transaction) -> None:
        await tx.run(MessagesSql.add_blob, hash=hash, body=body)
        if not on_a_file:  # where an operation that waits would stop the writer
            named.set()
            await delete.wait()
        block = NewBlock("of another", 0, "text", None, hash)
        message = NewMessage("of another", "another", "", "user", "", 0, "prompt")
        await tx.run(MessagesSql.add_messages, messages=[message], blocks=[block])

    naming = asyncio.ensure_future(core_of(hf).runtime().transact(name))
    await (naming if on_a_file else named.wait())
    deleting = asyncio.ensure_future((await hf.session("s")).delete())
    await asyncio.wait({deleting}, timeout=None if on_a_file else 0.5)
    delete.set()
    await asyncio.gather(naming, deleting)
    assert query(place, "select count(*) from holdfast.block b join holdfast.blob l on l.hash = b.blob") == [(1,)]


async def test_a_session_with_an_open_run_is_not_deleted(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    run = await agent.enqueue("Go", session="s")
    with pytest.raises(UsageError, match="has an active run"):
        await (await hf.session("s")).delete()
    assert (await run.refresh()).state == "pending"
    await run.cancel()
    await (await hf.session("s")).delete()
    with pytest.raises(NotFound):
        await run.refresh()


async def test_a_key_of_a_deleted_run_is_free_again(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    first = await agent.run("Go", session="s", key="k")
    await (await hf.session("s")).delete()
    second = await agent.run("Go", session="s", key="k")
    assert (second.text, second.run_id != first.run_id) == ("done", True)


async def test_a_deleted_session_leaves_nothing_of_what_was_asked_or_allowed(hf: Holdfast, place: Place) -> None:
    @hf.tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = hf.agent("payer", model=scripted(hf, call("pay", amount=3), say("done")), tools=[pay])
    session = await hf.session("s")
    await hf.budgets.set("5", session=session)
    run = await agent.enqueue("Pay", session=session)
    await run.steer("And be quick.")  # before anybody has the run
    await hf.ensure_worker()

    async def asks() -> bool:
        return bool(await run.inquiries())

    await eventually(asks)
    await hf.approve(run.id)
    assert (await run.result()).outcome == "answered"
    await session.delete()
    for table in ("inquiry", "steer", "batch_request", "budget", "budget_use", "reservation", "compaction", "run"):
        assert query(place, f"select count(*) from holdfast.{table}") == [(0,)], table
