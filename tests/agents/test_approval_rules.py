"""The function behind `approve=`: it never blocks the loop, and whatever it does, nothing runs that nobody allowed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.definition import Mode
from holdfast.agents.people.people import ProgramCalls
from holdfast.app import core_of
from holdfast.events import CallView
from holdfast.models.script import Script, call, calls, say
from holdfast.testing import Labs
from tests.support.agents import settle

NOWHERE = "sqlite:////nowhere/at-all.db"


def _desk(rule: Any) -> tuple[Holdfast, Any, list[int]]:
    """An app, its agent, and the numbers with which its tool has run."""
    hf, acted = Holdfast(NOWHERE), list[int]()

    @hf.tool(approve=rule)
    def act(n: int) -> str:
        """Act."""
        acted.append(n)
        return f"acted {n}"

    return hf, hf.agent("actor", model="scripted:", tools=[act]), acted


@pytest.mark.parametrize("mode", ["streaming", "batch"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_sync_rule_runs_on_a_thread_and_an_async_one_on_the_loop(labs: Labs, kind: str, mode: Mode) -> None:
    loop, on_loop = threading.get_ident(), list[bool]()

    def is_large(view: CallView) -> bool:
        on_loop.append(threading.get_ident() == loop)
        return bool(view.input["n"] > 50)

    async def is_large_async(view: CallView) -> bool:
        await asyncio.sleep(0)
        return is_large(view)

    hf, agent, acted = _desk(is_large if kind == "sync" else is_large_async)
    lab = await labs.use(hf, Script(calls(call("act", n=20), call("act", n=80)), say("done")))
    run = await agent.enqueue("Go", mode=mode)
    for _ in range(20):
        await lab.drain()
        if run.state == "awaiting_input":
            break
        await lab.clock.advance("31s")
    (inquiry,) = await hf.inquiries.list(run=run.id)
    assert inquiry.call is not None
    assert (inquiry.call.input, acted, set(on_loop)) == ({"n": 80}, [20], {kind == "async"})
    await hf.approve(inquiry.id)
    await settle(lab, run)
    assert acted == [20, 80]


@pytest.mark.parametrize("kind", ["sync", "async", "raises", "exits"])
async def test_a_rule_that_hangs_or_raises_asks_a_person(
    labs: Labs, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    freed = threading.Event()

    async def hangs_async(_: CallView) -> bool:
        await asyncio.Event().wait()
        return False

    def raises(_: CallView) -> bool:
        raise SystemExit("no") if kind == "exits" else KeyError("no")

    rules: dict[str, Any] = {"sync": lambda _: freed.wait(60), "async": hangs_async}
    hf, agent, acted = _desk(rules.get(kind, raises))
    core_of(hf).tools.calls = ProgramCalls(patience=0.05)
    lab = await labs.use(hf, Script(call("act", n=1), say("done")))
    try:
        run = await agent.enqueue("Go")
        await lab.drain()
        assert (run.state, acted) == ("awaiting_input", [])
        assert "the approve= of tool act failed, so a person is asked" in caplog.text
    finally:
        freed.set()
    (inquiry,) = await hf.inquiries.list(run=run.id)
    await hf.approve(inquiry.id)
    await settle(lab, run)
    assert acted == [1]


async def test_threads_of_a_rule_that_hangs_are_bounded(labs: Labs) -> None:
    freed, begun = threading.Event(), list[int]()

    def hangs(view: CallView) -> bool:
        begun.append(view.input["n"])
        return freed.wait(60)

    hf, agent, acted = _desk(hangs)
    core_of(hf).tools.calls = ProgramCalls(patience=0.05)
    lab = await labs.use(hf, Script(calls(*(call("act", n=n) for n in range(30))), say("done")))
    try:
        run = await agent.enqueue("Go")
        await lab.drain()
        assert len(begun) <= 16  # eight that hang, and those that began before it was known
        assert (len(await hf.inquiries.list(run=run.id)), acted) == (30, [])
    finally:
        freed.set()
