"""Two runs side by side: what they said, what they called, what they used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.forks.comparison import Comparison, as_dict
from holdfast.errors import NotFound
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs


class Clerk:
    def __init__(self) -> None:
        self.hf = Holdfast("sqlite:////nowhere/at-all.db")
        self.price = "10"

        @self.hf.tool(effect="read")
        def price(of: str) -> str:
            """A price."""
            return self.price

        @self.hf.tool(effect="read")
        def stock(of: str) -> str:
            """The stock."""
            return "3"

        self.agent = self.hf.agent("clerk", model="scripted:", tools=[price, stock])


def _asked(messages: list[Any]) -> Any:
    return call("price", of=messages[0]["content"][0]["text"])


def _said(messages: list[Any]) -> Any:
    return say(f"It costs\n{messages[2]['content'][0]['content']}")


SCRIPT = (_asked, call("stock", of="all"), _said)


def marks(found: Comparison) -> list[str]:
    return [pair.mark for pair in found.calls]


async def test_a_run_is_the_same_as_its_fork(labs: Labs) -> None:
    clerk = Clerk()
    lab = await labs.use(clerk.hf, Script(*SCRIPT))
    run = await clerk.agent.enqueue("tea")
    await lab.drain()
    fork = await run.fork(2)
    await lab.drain()
    found = await clerk.hf.runs.compare(run, fork.id)
    assert (found.same_answer, found.same_calls, marks(found)) == (True, True, ["=", "="])
    assert (found.b.forked_from, found.b.forked_at) == (run.id, 2)
    facts = {fact.name: (fact.a, fact.b) for fact in found.facts}
    assert facts["turns"] == (3, 3)
    assert facts["calls"] == (2, 2)
    assert facts["input_tokens"][0] > facts["input_tokens"][1] > 0
    assert facts["models"] == ("scripted:", "scripted:")


async def test_what_differs_is_marked(labs: Labs) -> None:
    clerk = Clerk()
    lab = await labs.use(clerk.hf, Script(*SCRIPT))
    run = await clerk.agent.enqueue("tea")
    await lab.drain()
    clerk.price = "12"
    dearer = await clerk.agent.enqueue("tea")
    other = await clerk.agent.enqueue("coffee")
    changed = await run.fork(results={"price": "9"})
    await lab.drain()
    found = await clerk.hf.runs.compare(run, dearer)
    assert (found.same_answer, marks(found)) == (False, ["~", "="])
    assert found.diff[2:] == ("@@ -1,2 +1,2 @@", " It costs", "-10", "+12")
    assert sorted(marks(await clerk.hf.runs.compare(run, other))) == ["+", "-", "="]
    assert marks(await clerk.hf.runs.compare(run, changed)) == ["~", "="]
    told = as_dict(found)
    assert json.loads(json.dumps(told))["tools"][0]["b"]["output"] == "12"


@pytest.mark.long
async def test_a_fork_of_a_fork_has_the_calls_of_all_before_it_once(labs: Labs) -> None:
    clerk = Clerk()
    steps = (_asked, call("stock", of="1"), call("stock", of="2"), call("stock", of="3"), say("done"))
    lab = await labs.use(clerk.hf, Script(*steps))
    run = await clerk.agent.enqueue("tea")
    await lab.drain()
    for first, second in ((3, 1), (2, 3), (3, 2), (4, 4), (2, 5), (5, 2)):
        fork = await run.fork(first)
        await lab.drain()
        again = await fork.fork(second)
        await lab.drain()
        deepest = await again.fork(3, tools="recorded")
        await lab.drain()
        for each in (fork, again, deepest):
            found = await clerk.hf.runs.compare(run, each)
            assert marks(found) == ["="] * 4, (first, second, each.id)
            assert [call.turn for call in found.b.calls] == [1, 2, 3, 4]
    other = await (await run.fork(results={"price": "9"})).fork(2)
    await lab.drain()
    assert marks(await clerk.hf.runs.compare(run, other)) == ["~", "=", "=", "="]


async def test_a_run_that_is_not_there_is_not_compared(labs: Labs) -> None:
    clerk = Clerk()
    await labs.use(clerk.hf, Script(*SCRIPT))
    run = await clerk.agent.enqueue("tea")
    with pytest.raises(NotFound):
        await clerk.hf.runs.compare(run, "018f0000-0000-7000-8000-000000000000")
    with pytest.raises(NotFound):
        await clerk.hf.tenant("other").runs.compare(run, run)
