"""Agents in a lab: a script answers for the model, `drain` plays runs, and the witness says what was bought."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from holdfast import Agent, Holdfast, ToolContext
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.events import RunEnded, TextDelta
from holdfast.models import Model, Request, ResponseHead, ScriptedModel
from holdfast.testing import Crash, Labs, Script, Stuck, call, calls, lab, refuse, say, think, truncate

SHOP = Script(
    think("A refund needs the order first."),
    call("find_order", number="A1"),
    call("refund", number="A1", amount="80"),
    say("Done: 80 euros."),
)


@pytest.fixture
def support(hf: Holdfast) -> Agent[str]:
    @hf.tool(effect="read")
    async def find_order(number: str) -> dict[str, str]:
        """Look up an order."""
        return {"number": number, "total": "80"}

    @hf.tool
    def refund(ctx: ToolContext, number: str, amount: str) -> str:
        """Refund an order."""
        return f"{number}: {amount} ({ctx.variable('customer', int, 0)})"

    return hf.agent("support", model="claude-sonnet-5-5", tools=[find_order, refund])


async def test_a_script_answers_for_every_model(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, SHOP)
    run = await support.enqueue("My order A1 never came.")
    states = [run.state]
    await lab.drain()
    assert [*states, run.state] == ["pending", "completed"]
    assert await run.text() == "Done: 80 euros."
    assert lab.calls("refund") == [{"number": "A1", "amount": "80"}]
    assert lab.rebought == []


async def test_calls_are_as_the_model_wrote_them_in_order(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    script = Script(
        calls(call("refund", number="A2", amount="1"), call("refund", number="A1", amount="2")),
        call("refund", number="A3"),
        call("refund", number="A3", amount="3"),
        say("Done."),
    )
    lab = await labs.use(hf, script)
    await support.enqueue("Go")
    await lab.drain()
    assert [given["number"] for given in lab.calls("refund")] == ["A2", "A1", "A3", "A3"]
    assert lab.calls("find_order") == []
    with pytest.raises(UsageError, match="no tool and no agent 'refunds'"):
        lab.calls("refunds")


async def test_calls_of_an_agent_are_the_tasks_it_was_given(hf: Holdfast, labs: Labs) -> None:
    inner = hf.agent("inner", model="scripted:")
    outer = hf.agent("outer", model="scripted:", agents=[inner])
    lab = await labs.use(hf)
    run = await outer.enqueue("Look it up")
    await lab.drain()
    (task,) = lab.calls("inner")
    assert await run.text() == task["task"]


async def test_whoever_waits_for_a_run_gets_it(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    await labs.use(hf, SHOP)
    assert (await support.run("Go")).text == "Done: 80 euros."
    results = await asyncio.gather(*(support.run("Go") for _ in range(3)))
    assert {result.outcome for result in results} == {"answered"}
    assert (await asyncio.to_thread(support.run_sync, "Go")).text == "Done: 80 euros."
    run = await support.enqueue("Go")
    events = [event async for event in run.stream()]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Done: 80 euros."
    assert isinstance(events[-1], RunEnded)


async def test_inline_a_run_ends_where_it_is_enqueued(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, SHOP, inline=True)
    run = await support.enqueue("Go")
    assert (await run.refresh()).state == "completed"
    assert len(lab.calls("refund")) == 1


async def test_a_run_that_cannot_end_is_told_of(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    await labs.use(hf, SHOP)
    run = await support.enqueue("Go", delay="1h")
    with pytest.raises(Stuck, match="it is due in 1h"):
        await run.result()


async def test_outcomes_that_are_no_answers(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, Script(refuse("violence")))
    refused = await support.run("Go")
    assert (refused.outcome, refused.refusal and refused.refusal.category) == ("refused", "violence")
    await lab.close()
    lab = await labs.use(hf, Script(truncate("Once upon a")))
    cut = await support.run("Go")
    assert (cut.outcome, cut.text) == ("truncated", "Once upon a")


async def test_a_script_that_ends_too_soon_fails_the_run_and_buys_nothing(
    hf: Holdfast, labs: Labs, support: Agent[str]
) -> None:
    lab = await labs.use(hf, Script(call("find_order", number="A1")))
    run = await support.enqueue("Go")
    await lab.drain()
    assert run.state == "failed"
    assert lab.rebought == []


async def test_the_app_has_its_own_models_again_afterwards(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    before = ScriptedModel(Script(say("mine")))
    core_of(hf).book.substitute = before
    async with lab(hf, SHOP) as opened:
        assert core_of(hf).book.substitute is not before
        assert (await support.run("Go")).text == "Done: 80 euros."
    assert core_of(hf).book.substitute is before
    assert core_of(hf).watched is None
    with pytest.raises(UsageError, match="open the lab with a script"):
        _ = (await labs.use(hf)).rebought
    assert opened.closed


async def test_survives_a_crash_at_every_commit(hf: Holdfast, labs: Labs, support: Agent[str], dialect: str) -> None:
    crashes: list[Crash] = []
    most = 20 if dialect == "sqlite" else 8
    async for crashing in labs.crash_everywhere(hf, SHOP, at_most=most):
        run = await support.enqueue("My order A1 never came.")
        await crashing.drain()
        assert run.state == "completed"
        assert await run.text() == "Done: 80 euros."
        assert crashing.rebought == []
        assert crashing.calls("refund") == [{"number": "A1", "amount": "80"}]
        crashes += crashing.crashes
    assert len(set(crashes)) == len(crashes) == most


class AskedTwice:
    """A model whose caller asks twice and keeps one answer: what `rebought` is there to notice."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Any, None]:
        async for _ in self._model.stream(request, lambda _: None):
            pass
        async for event in self._model.stream(request, answered):
            yield event

    async def count_tokens(self, request: Request) -> int:
        return await self._model.count_tokens(request)

    async def close(self) -> None:
        await self._model.close()


async def test_a_model_that_was_open_before_is_not_the_lab_s(hf: Holdfast, labs: Labs) -> None:
    """What an event loop has open is part of where the app works: in a lab it opens its own."""
    book = core_of(hf).book
    hf.script("x", Script(say("hello")))
    outside = book.open("scripted:x")
    lab = await labs.use(hf)
    inside = book.open("scripted:x")
    assert inside is not outside
    assert book.open("scripted:x") is inside
    await lab.close()
    assert book.open("scripted:x") is outside
    await hf.close()


async def test_a_purchase_that_nothing_explains_is_noticed(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, Script(say("Yes.")))
    model = core_of(hf).book.substitute
    assert model is not None
    core_of(hf).book.substitute = AskedTwice(model)
    run = await support.enqueue("Go")
    await lab.drain()
    (found,) = lab.rebought
    assert found == (run.id, 1, 2, 1, 0)
