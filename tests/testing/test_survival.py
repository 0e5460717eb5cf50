"""`survives`: the same comes out wherever a worker is killed, and nothing is bought twice; or it is told where."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Agent, Holdfast
from holdfast.app import core_of
from holdfast.models import Request, ResponseHead
from holdfast.testing import Lab, Labs, Script, call, calls, expect, say
from holdfast.testing.agents import LabModel
from holdfast.testing.bought import purchases, turn_of

SHOP = Script(
    expect(text="A1").call("find_order", number="A1"),
    expect(tool="find_order", result="80").call("refund", number="A1", amount="80"),
    expect(tool="refund", is_error=False).say("Done: 80 euros."),
)


class Shop:
    """An agent whose refunds a person approves."""

    def __init__(self, hf: Holdfast) -> None:
        self.paid: dict[str, str] = {}

        @hf.tool(effect="read")
        def find_order(number: str) -> dict[str, str]:
            """Look up an order."""
            return {"number": number, "total": "80"}

        @hf.tool(effect="idempotent", approve=lambda call: Decimal(call.input["amount"]) > 50)
        def refund(number: str, amount: str) -> str:
            """Refund an order."""
            self.paid[number] = amount
            return f"{amount} for {number}"

        self.agent: Agent[str] = hf.agent("support", model="claude-sonnet-5-5", tools=[find_order, refund])


def refuse_folder(*_: object) -> Any:
    raise AssertionError("a lab needs no folder for its batches")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mode", "at_most"), [("streaming", 10), ("batch", 8)])
async def test_a_run_that_waits_for_approval_survives_every_crash(
    hf: Holdfast, labs: Labs, mode: Any, at_most: int
) -> None:
    shop, killed = Shop(hf), set[str]()

    async def body(lab: Lab) -> tuple[str, list[dict[str, Any]], dict[str, str]]:
        shop.paid.clear()
        run = await shop.agent.enqueue("My order A1 never came.", mode=mode)
        await lab.pass_time(run)
        assert run.state == "awaiting_input"
        await lab.approve(run)
        await lab.pass_time(run)
        killed.update(crash.commit for crash in lab.crashes)
        return await run.text(), lab.calls("refund"), dict(shop.paid)

    came = await labs.survives(hf, body, SHOP, at_most=at_most)
    assert came == ("Done: 80 euros.", [{"number": "A1", "amount": "80"}], {"A1": "80"})
    assert len(killed) > 5


async def test_a_body_that_returns_nothing_is_compared_by_how_its_runs_ended(hf: Holdfast, labs: Labs) -> None:
    shop, bodies = Shop(hf), 0

    async def body(lab: Lab) -> None:
        nonlocal bodies
        bodies += 1
        await shop.agent.enqueue("My order A1 never came.")
        await lab.drain()
        for inquiry in lab.inquiries():
            await (lab.approve if bodies < 4 else lab.deny)(inquiry)
        await lab.drain()

    with pytest.raises(AssertionError, match="a crash changes what comes out") as caught:
        await labs.survives(hf, body, Script(call("refund", number="A1", amount="80"), say("Done.")), at_most=6)
    assert bodies == 4
    told = str(caught.value)
    assert "'completed'" in told
    assert "denied" in told or "failed" in told
    (note,) = caught.value.__notes__
    assert note.startswith("holdfast: in this run the worker was killed")
    assert note.endswith("(crash 3 of 6).")


async def test_what_differs_is_told_with_its_crash(hf: Holdfast, labs: Labs) -> None:
    done: list[str] = []

    @hf.job
    def send(to: str) -> None:
        done.append(to)

    async def body(lab: Lab) -> list[str]:
        done.clear()
        await send.enqueue("Ann")
        await lab.drain()
        return list(done)

    with pytest.raises(AssertionError) as caught:
        await labs.survives(hf, body)
    assert "- ['Ann']\n+ ['Ann', 'Ann']" in str(caught.value)
    assert caught.value.__notes__[0].startswith("holdfast: in this run the worker was killed")


class Buying(LabModel):
    """Has everything bought twice that is asked for in a stream."""

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Any, None]:
        async for _ in super().stream(request, lambda _: None):
            pass
        async for event in super().stream(request, answered):
            yield event


async def test_what_is_bought_twice_fails(hf: Holdfast, labs: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.agents.LabModel", Buying)
    shop = Shop(hf)

    async def body(lab: Lab) -> str:
        return (await shop.agent.run("Go")).text

    with pytest.raises(AssertionError, match=r"turn 1: bought 2 times, 1 recorded, 0 of unknown outcome") as caught:
        await labs.survives(hf, body, Script(say("hello")))
    assert caught.value.__notes__ == ["holdfast: this was the run without a crash, the first of crash_everywhere."]


async def test_batches_of_a_lab_are_bought_once_and_kept_through_crashes(
    hf: Holdfast, labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.models.spool.Spool._path", refuse_folder)
    agent = hf.agent("writer", model="claude-sonnet-5-5")
    lab = await labs.use(hf, Script(say("hello")))
    runs = [await agent.enqueue(f"Say {number}", mode="batch") for number in range(3)]
    await lab.drain()
    assert {run.state for run in runs} == {"batch_submitting"}
    assert lab.rebought == []
    lab.crash(before="take")
    await lab.pass_time(*runs)
    assert [await run.text() for run in runs] == ["hello"] * 3
    assert len(lab.crashes) == 1
    assert lab.rebought == []
    model: Any = core_of(hf).book.substitute
    bought = purchases(model.witness.lines)
    assert bought == {(run.id, 1): 1 for run in runs}


async def test_a_lab_without_a_script_keeps_batches_in_memory_too(
    hf: Holdfast, labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.models.spool.Spool._path", refuse_folder)
    agent = hf.agent("writer", model="scripted:")
    lab = await labs.use(hf)
    run = await agent.enqueue("Say", mode="batch")
    await lab.pass_time(run)
    assert await run.text() == "Say"


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        ("01a-b/3/1.7", ("01a-b", 3)),
        ("01a-b_12_2", ("01a-b", 12)),
        ("01a-b/summary/1", None),
        ("01a-b/1", None),
        ("", None),
    ],
)
def test_a_witness_names_the_turn_that_a_call_is_for(call: str, meant: tuple[str, int] | None) -> None:
    assert turn_of(call) == meant


async def test_a_batch_that_is_bought_again_is_noticed(hf: Holdfast, labs: Labs) -> None:
    agent = hf.agent("writer", model="claude-sonnet-5-5")
    lab = await labs.use(hf, Script(say("hello")))
    run = await agent.enqueue("Say", mode="batch")
    await lab.pass_time(run)
    model: Any = core_of(hf).book.substitute
    later = await agent.enqueue("Say", mode="batch")
    await lab.drain()
    model.witness.write(event="billed", call=f"{later.id}_1_1", batch="msgbatch_1")  # it is to be collected yet
    assert lab.rebought == []
    model.witness.write(event="billed", call=f"{run.id}_1_2", batch="msgbatch_2")
    assert lab.rebought == [(run.id, 1, 2, 1, 0)]


async def test_several_calls_at_once_survive(hf: Holdfast, labs: Labs) -> None:
    shop = Shop(hf)
    both = calls(call("find_order", number="A1"), call("find_order", number="A2"))

    async def body(lab: Lab) -> None:
        await shop.agent.enqueue("Both")
        await lab.drain()

    await labs.survives(hf, body, Script(both, say("Seen.")), at_most=10)
