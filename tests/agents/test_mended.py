"""What a reader of the code found: paid answers that were lost, results that were overwritten, waits that blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Limits
from holdfast.agents.creating import put_agent
from holdfast.agents.lanes import close_lane
from holdfast.agents.statements import Runs
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import Transaction
from holdfast.models import Answered, Request
from holdfast.models.folding import Folding
from holdfast.models.script import Script, call, calls, ends, say
from holdfast.models.scripted import ScriptedModel
from tests.conftest import Place
from tests.support.apps import MakeApp, eventually, happens, working
from tests.support.past_kernel import query

Wire = dict[str, Any]
PROGRESS = "select progressed_at from holdfast.run"


class Counting:
    """A scripted model that counts what it is asked for, and may hold its breath in between."""

    def __init__(self, script: Script, hold: Callable[[], Any] | None = None) -> None:
        self._model = ScriptedModel(script)
        self._hold = hold
        self.calls = 0

    async def stream(self, request: Request, answered: Callable[[Answered], None]) -> AsyncGenerator[Wire, None]:
        self.calls += 1
        if self._hold is not None:
            async for event in self._hold():
                yield event
        async for event in self._model.stream(request, answered):
            yield event

    async def count_tokens(self, request: Request) -> int:
        return 1

    async def close(self) -> None: ...


async def test_a_model_that_only_pings_is_alive(
    make_app: MakeApp, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agents.journal._LIFE", 0.0)  # note it at once, not every few seconds
    hf = make_app(embedded=False, stream_interval="10ms")
    go = asyncio.Event()

    async def pinging() -> AsyncGenerator[Wire, None]:
        while not go.is_set():
            yield {"type": "ping"}
            await asyncio.sleep(0.01)

    hf.book.substitute = model = Counting(Script(say("at last")), pinging)
    run = await hf.agent("slow", model="scripted:").enqueue("Hello")
    async with working(hf):
        await eventually(lambda: _asked(model))
        await eventually(lambda: _in(hf, run.id, "streaming"))
        before = query(place, PROGRESS)

        async def later() -> bool:
            return query(place, PROGRESS) > before

        await eventually(later)
        go.set()
        assert await run.text() == "at last"
    assert model.calls == 1


async def _asked(model: Counting) -> bool:
    return model.calls > 0


async def test_a_lane_that_cannot_be_closed_costs_no_answer(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone for a moment.")

    class Spent(Counting):
        async def stream(self, request: Request, answered: Callable[[Answered], None]) -> AsyncGenerator[Wire, None]:
            limits = {"requests-remaining": "0", "requests-reset": "2126-01-01T00:00:00Z"}
            answered(Answered(limits=limits))
            async for event in super().stream(request, lambda _: None):
                yield event

    monkeypatch.setattr("holdfast.agents.loop.close_lane", away)
    hf.book.substitute = model = Spent(Script(say("kept")))
    assert (await hf.agent("spender", model="scripted:").run("Hello")).text == "kept"
    assert model.calls == 1


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": 1e999}', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_arguments_that_are_no_json_are_bad_ones(text: str) -> None:
    folding = Folding()
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    for event in (
        {"type": "message_start", "message": {"id": "m", "model": "x", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ):
        folding.feed(event)
    assert list(folding.reply().bad_inputs) == ["toolu_1"]


async def test_what_a_call_did_is_kept_when_its_run_is_cancelled(make_app: MakeApp) -> None:
    hf = make_app()
    paid = asyncio.Event()

    @hf.tool(effect="once")
    async def refund() -> str:
        """Refund."""
        paid.set()
        return "refunded 80"

    @hf.tool
    async def forever() -> str:
        """Never ends."""
        await asyncio.sleep(3600)
        return ""

    hf.book.scripts["both"] = Script(calls(call("refund"), call("forever")), say("never"))
    agent = hf.agent("till", model="scripted:both", tools=[refund, forever])
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    await happens(paid)
    await eventually(lambda: _completed(hf, run.id))
    await run.cancel()
    await eventually(lambda: _in(hf, run.id, "cancelled"))
    assert run.session_id is not None
    last = (await hf.sessions[run.session_id].messages())[-1]
    assert last.blocks[0].get("content") == "refunded 80"
    assert [bool(block.get("is_error")) for block in last.blocks] == [False, True]


async def _completed(hf: Holdfast, run: str) -> bool:
    return any(each.state == "completed" for each in await hf.runs[run].calls())


async def _in(hf: Holdfast, run: str, state: str) -> bool:
    return (await hf.runs.get(run)).state == state


async def test_a_stop_reason_nobody_knows_fails_the_run_with_its_answer(hf: Holdfast) -> None:
    hf.book.substitute = model = Counting(Script(ends("surprise", say("hm"))))
    run = await hf.agent("odd", model="scripted:").enqueue("Hello")
    await hf.ensure_worker()
    await eventually(lambda: _in(hf, run.id, "failed"))
    row = await hf.runs.get(run.id)
    assert (row.error_type, row.turns, model.calls) == ("streaming_error", 1, 1)
    assert "surprise" in (row.error or "")
    assert (await hf.jobs.get(run.id)).state == "failed"


async def test_a_delegate_keeps_its_model_and_what_it_requires(hf: Holdfast) -> None:
    hf.book.scripts["inner"] = Script(say("inner"))
    hf.book.scripts["outer"] = Script(call("gpu", task="think"), say("outer"))
    hf.book.scripts["other"] = Script(call("gpu", task="think"), say("other"))
    inner = hf.agent("gpu", model="scripted:inner", requires=["tag:gpu=yes"], priority=7)
    outer = hf.agent("lead", model="scripted:outer", agents=[inner])
    await hf.ensure_worker()
    run = await outer.enqueue("Go", model="scripted:other")
    child = (await eventually(lambda: _children(hf, run.id)))[0]
    assert (await hf.jobs.get(child.id)).priority == 7
    assert "tag:gpu=yes" in await hf.why(child.id)
    await run.cancel()


async def _children(hf: Holdfast, run: str) -> list[Any]:
    return list(await hf.runs[run].children())


async def test_time_is_up_also_for_a_run_that_waits_for_a_tool(hf: Holdfast) -> None:
    @hf.tool
    async def forever() -> str:
        """Never ends."""
        await asyncio.sleep(3600)
        return ""

    hf.book.scripts["late"] = Script(call("forever"), say("never"))
    agent = hf.agent("late", model="scripted:late", tools=[forever], limits=Limits(time="1s"))
    result = await agent.run("Go")
    assert (result.outcome, result.limit) == ("limited", "1s of wall clock")


async def test_a_tool_on_a_thread_that_hangs_gives_its_slot_back(make_app: MakeApp) -> None:
    hf = make_app(max_concurrent_tools=1)
    release = threading.Event()

    @hf.tool(timeout="200ms", effect="once", unknown="report")
    def hang() -> str:
        """Hang."""
        release.wait(60)
        return ""

    @hf.tool
    def quick() -> str:
        """Quick."""
        return "done"

    hf.book.scripts["two"] = Script(call("hang"), call("quick"), say("both"))
    try:
        result = await hf.agent("two", model="scripted:two", tools=[hang, quick]).run("Go")
    finally:
        release.set()
    assert result.text == "both"
    assert [each.state for each in await hf.runs[result.run_id].calls()] == ["failed", "completed"]


async def test_a_callers_open_transaction_stops_nobody(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("busy", model="scripted:")
    first = await agent.enqueue("One", session="shared")
    if not place.url.startswith("postgres"):
        async with working(hf):  # a file has one writer: an open transaction of the caller's stops everybody
            assert await first.text() == "One"
        return
    with psycopg.connect(place.url) as mine:
        for session in ("shared", "other"):
            agent.enqueue_sync("Two", session=session, tx=mine)
        with psycopg.connect(place.url) as theirs:
            agent.enqueue_sync("Three", session="third", tx=theirs)
            async with working(hf):
                assert await first.text() == "One"
            theirs.rollback()
        mine.rollback()


async def test_a_lane_for_a_person_keeps_its_reason(hf: Holdfast) -> None:
    await hf.runtime().transact(close_lane, "a/b", None, person=True, reason="no credit")
    await hf.runtime().transact(close_lane, "a/b", 1_000, person=False, reason="rate limit")
    from holdfast.agents.reading import list_lanes

    (lane,) = await hf.runtime().transact(list_lanes)
    assert (lane.person, lane.reason) == (1, "no credit")


async def test_two_that_write_the_same_agent_at_once_write_it_once(make_app: MakeApp, place: Place) -> None:
    first, second = (make_app(embedded=False) for _ in range(2))
    named = [app.agent("twin", model="scripted:").named for app in (first, second)]
    written, go = asyncio.Event(), asyncio.Event()

    async def slowly(tx: Transaction) -> str:
        row = await put_agent(tx, named[0])
        if place.url.startswith("postgres"):  # a file has one writer, which must not wait for anybody
            written.set()
            await go.wait()
        return row.id

    slow = asyncio.create_task(first.runtime().transact(slowly))
    if place.url.startswith("postgres"):
        await happens(written)
    quick = asyncio.create_task(second.runtime().transact(put_agent, named[1]))
    if place.url.startswith("postgres"):
        await eventually(lambda: _blocked(place))
    go.set()
    assert (await quick).id == await slow
    assert [row.version for row in await first.agents.list()] == [1]


async def _blocked(place: Place) -> bool:
    """Whether somebody waits for a row that is not committed yet."""
    return bool(
        query(place, "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
    )


async def test_a_rescue_tests_claim_and_progress_where_it_takes_the_lease(make_app: MakeApp) -> None:
    """It was found without progress, and has got on since: named by its number alone it must keep its lease."""
    hf = make_app(embedded=False)
    go = asyncio.Event()

    async def waiting() -> AsyncGenerator[Wire, None]:
        yield {"type": "ping"}
        await go.wait()

    async def lapse(tx: Transaction, job: int, timeout_us: int) -> None:
        await tx.run(Runs.lapse, seqs=[job], timeout_us=timeout_us)

    hf.book.substitute = model = Counting(Script(say("done")), waiting)
    run = await hf.agent("found", model="scripted:").enqueue("Hello")
    async with working(hf):
        await eventually(lambda: _asked(model))
        job = (await hf.runs.get(run.id)).job
        before = (await hf.jobs.get(run.id)).lease_until
        await hf.runtime().transact(lapse, job, 3_600_000_000)
        assert ((await hf.jobs.get(run.id)).lease_until or 0) >= (before or 0)
        go.set()
        assert await run.text() == "done"
    assert model.calls == 1
