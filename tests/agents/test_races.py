"""Two things at once, in an order that chance seldom gives: each is held until the other has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import Holdfast
from holdfast.agents.definition import Limits
from holdfast.agents.events.log import Journal, Piece
from holdfast.agents.runs.end import rescue
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.errors import LeaseLost, RunFailed, StoreUnavailable
from holdfast.events import RunEnded, TextDelta
from holdfast.kernel.leases import expire
from holdfast.kernel.rows import Lease
from holdfast.kernel.sql import in_schema
from holdfast.models.facts import facts_for
from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Request, ResponseHead
from holdfast.models.script import Script, call, say
from holdfast.models.scripted import ScriptedModel
from holdfast.models.simulator.strict import check_conversation
from tests.support.apps import MakeApp, eventually, happens, outcomes, working

pytestmark = pytest.mark.asyncio

Hook = Callable[[Callable[[], Awaitable[Any]], tuple[Any, ...]], Awaitable[Any]]


def intercept(app: Holdfast, **hooks: Hook) -> None:
    """Let a hook decide when an operation of this name reaches the store, and how often."""
    database: Any = core_of(app).runtime().database
    transact = database.transact

    async def intercepted(operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        async def go() -> Any:
            return await transact(operation, *args, **kwargs)

        hook = hooks.get(operation.__name__)
        return await (go() if hook is None else hook(go, args))

    database.transact = intercepted


class Strict(ScriptedModel):
    """Refuses what the provider would refuse."""

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> Any:
        check_conversation(request.body(), facts_for("scripted:"))
        async for event in super().stream(request, answered):
            yield event


async def test_a_run_whose_turn_comes_while_it_looks_for_it_sees_all_that_was_said(make_app: MakeApp) -> None:
    """Loaded when the run before it had an open call, asked when that had ended."""
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = Strict(Script(call("wait"), say("done")))
    called, looked = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def wait() -> str:
        """Wait."""
        called.set()
        await happens(looked)
        return "waited"

    agent = hf.agent("one", model="scripted:", tools=[wait])
    first = await agent.enqueue("first", session="s")

    async def late(go: Callable[[], Awaitable[Any]], args: tuple[Any, ...]) -> Any:
        if args[0].run.id != first.id:
            looked.set()
            await first.result(timeout="60s")
        return await go()

    async with working(hf):
        await happens(called)
        intercept(hf, queue_up=late, begin=late)
        second = await agent.enqueue("second", session="s")
        assert await second.text(timeout="60s") == "done"
    texts = [(m.kind, m.run_id) for m in await hf.sessions[first.session_id or ""].messages()]
    kinds = ("prompt", "answer", "results", "answer")
    assert texts == [(kind, run.id) for run in (first, second) for kind in kinds]


async def test_a_run_that_is_over_its_limit_before_its_turn_waits_for_its_turn(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = Strict(Script(call("wait"), say("done")))
    called, queued = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def wait() -> str:
        """Wait."""
        called.set()
        await happens(queued)
        return "waited"

    async def seen(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        answer = await go()
        queued.set()
        return answer

    agent = hf.agent("one", model="scripted:", tools=[wait])
    first = await agent.enqueue("first", session="s")
    async with working(hf):
        await happens(called)
        intercept(hf, queue_up=seen, conclude=seen)
        second = await agent.enqueue("second", session="s", limits=Limits(time="1us"))
        assert (await second.result(timeout="60s")).outcome == "limited"
        assert (await first.result(timeout="60s")).text == "done"
        assert await (await agent.enqueue("third", session="s")).text(timeout="60s") == "done"
    told = [m.run_id for m in await hf.sessions[first.session_id or ""].messages()]
    assert told[:5] == [first.id] * 4 + [second.id]


async def test_an_answer_stored_after_a_cancel_says_so_however_often_it_is_asked(make_app: MakeApp) -> None:
    """The driver repeats a commit whose answer was lost."""
    hf = make_app(embedded=False, heartbeat="20s")  # which would tell of the cancellation too
    core_of(hf).book.substitute = ScriptedModel(Script(call("never"), say("never")))
    answers: list[str] = []

    async def twice(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        await _execute(hf, "update holdfast.lease set cancel_requested_at = 1")  # and nobody has heard of it yet
        answers.extend([await go(), await go()])
        return answers[-1]

    @hf.tool
    def never() -> str:
        """Never called."""
        raise AssertionError

    agent = hf.agent("one", model="scripted:", tools=[never])
    intercept(hf, commit=twice)
    async with working(hf):
        run = await agent.enqueue("Go")

        async def cancelled() -> bool:
            return (await run.refresh()).state == "cancelled"

        await eventually(cancelled)
    assert answers == ["cancelled", "cancelled"]
    last = (await hf.sessions[run.session_id or ""].messages())[-1]
    assert [block["type"] for block in last.blocks] == ["tool_result"]


async def test_a_run_that_waited_long_is_not_taken_from_the_worker_that_just_took_it(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    loads: list[int] = []

    class Busy(ScriptedModel):
        async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> Any:
            if len(loads) == 1:
                raise ModelFailure("overloaded", "come back later", bought="no")
            async for event in super().stream(request, answered):
                yield event

    async def looked_at(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        loads.append(0)
        if len(loads) == 2:
            await _execute(hf, "update holdfast.run set progressed_at = 1")
            loads[-1] = await core_of(hf).runtime().database.transact(rescue, hf.settings)
        return await go()

    core_of(hf).book.substitute = Busy(Script(say("at last")))
    agent = hf.agent("one", model="scripted:")
    run = await agent.enqueue("Go")
    intercept(hf, load=looked_at)
    async with working(hf):
        assert await run.text(timeout="60s") == "at last"
    assert loads == [0, 0]


async def test_a_failure_that_comes_after_the_end_of_its_run_is_not_told(make_app: MakeApp) -> None:
    """The worker was taken for dead, its cancelled run was ended, and then its call fails."""
    hf = make_app(embedded=False)
    refused: list[str] = []

    class Down(ScriptedModel):
        async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> Any:
            if not refused:
                raise ModelFailure("overloaded", "come back later", bought="no")
            yield {}

    async def too_late(go: Callable[[], Awaitable[Any]], args: tuple[Any, ...]) -> Any:
        await _execute(hf, "update holdfast.lease set cancel_requested_at = 1, lease_until = 1")
        await core_of(hf).runtime().database.transact(expire, gone=[], limit=10, backoff_us=1, chance=Ports().random)
        try:
            return await go()
        except LeaseLost:
            refused.append(args[0].run.id)
            raise

    core_of(hf).book.substitute = Down()
    agent = hf.agent("one", model="scripted:")
    run = await agent.enqueue("Go")
    intercept(hf, fail_call=too_late)
    async with working(hf):
        with pytest.raises(RunFailed):
            await run.result(timeout="60s")

        async def was_refused() -> bool:
            return refused == [run.id]

        await eventually(was_refused)
    assert isinstance((await run.events())[-1], RunEnded)


async def test_a_store_that_is_away_when_an_answer_comes_costs_no_second_call(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    model = core_of(hf).book.substitute = ScriptedModel(Script(say("dear answer")))
    tries: list[str] = []

    async def away_once(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        tries.append("commit")
        if len(tries) == 1:
            raise StoreUnavailable("the store is away.")
        return await go()

    agent = hf.agent("one", model="scripted:")
    run = await agent.enqueue("Go")
    intercept(hf, commit=away_once)
    async with working(hf):
        assert await run.text(timeout="60s") == "dear answer"
    assert len(tries) == 2
    assert [line["event"] for line in model.witness.lines] == ["sent", "done"]


async def test_a_store_that_is_away_fails_no_run(make_app: MakeApp) -> None:
    hf = make_app(embedded=False, max_attempts=1)
    core_of(hf).book.substitute = ScriptedModel(Script(say("here")))
    tries: list[str] = []

    async def away_twice(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        tries.append("load")
        if len(tries) < 3:
            raise StoreUnavailable("the store is away.")
        return await go()

    agent = hf.agent("one", model="scripted:")
    run = await agent.enqueue("Go")
    intercept(hf, load=away_twice)
    async with working(hf):
        assert await run.text(timeout="60s") == "here"
    assert await outcomes(hf, run.id) == ["snoozed", "snoozed", "succeeded"]


async def test_two_attempts_of_one_run_in_one_process_keep_their_words_apart(hf: Holdfast) -> None:
    """The one that was overtaken may not have noticed yet."""
    journal = Journal(core_of(hf).runtime().database, Ports(), 3600)
    old, new = (cast(Lease, SimpleNamespace(epoch=1, token=token)) for token in (1, 2))
    journal.put(new, "run", Piece("text_delta", 1, 0, 0, ["fresh"]))
    journal.put(old, "run", Piece("text_delta", 1, 0, 0, ["stale"]))
    journal.drop(old, "run")
    journal.put(new, "run", Piece("text_delta", 1, 0, 5, [" words"]))
    assert [data["text"] for _, data in await journal.take(new, "run")] == ["fresh words"]
    await journal.close()


async def test_what_one_run_says_and_the_store_refuses_is_missed_by_no_other(hf: Holdfast) -> None:
    agent = hf.agent("one", model="scripted:")
    odd, good = await agent.enqueue("Go"), await agent.enqueue("Go")
    await _execute(hf, "update holdfast.run set state = 'streaming', epoch = 1, token = 1")
    journal = Journal(core_of(hf).runtime().database, Ports(), 0.01)
    lease = cast(Lease, SimpleNamespace(epoch=1, token=1))
    journal.put(lease, odd.id, Piece("text_delta", 1, 0, 0, ["no \ud800 text"]))
    journal.put(lease, good.id, Piece("text_delta", 1, 0, 0, ["words"]))

    async def shown() -> bool:
        return any(isinstance(event, TextDelta) for event in await good.events())

    await eventually(shown)
    journal.put(lease, odd.id, Piece("text_delta", 1, 0, 9, ["and more"]))
    await journal.take(lease, odd.id)
    await journal.close()


async def _execute(app: Holdfast, text: str) -> None:
    database = core_of(app).runtime().database
    text = in_schema(text, database.dialect, app.settings.schema)

    async def execute(tx: Any) -> None:
        if database.dialect == "sqlite":
            tx.execute(text)
        else:
            await tx._line.connection.execute(text)

    await database.transact(execute)


async def test_of_two_that_are_not_to_wait_one_is_refused(hf: Holdfast) -> None:
    agent = hf.agent("door", model="scripted:")
    session = await hf.session("door")
    both = [session.send("Hello", agent, during="reject") for _ in range(2)]
    answers = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Run", "SessionBusy"]
    assert len(await hf.runs.list()) == 1
