"""What is reserved for a call is the most that it may cost, and what its cache entries cost is what was written."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Document, Holdfast, Image
from holdfast.models import cost
from holdfast.models.facts import facts_for
from holdfast.models.script import Script, call, calls, say
from holdfast.testing import Labs
from tests.support.agents import MODEL, settle

WINDOW = facts_for(MODEL).window
REMOTE: list[Any] = [
    Document.from_url("https://example.org/a.pdf"),
    Document.from_file_id("file_1"),
]


def app() -> Holdfast:
    return Holdfast("sqlite:////nowhere/at-all.db")


def whole(tokens: int, **more: Any) -> Decimal:
    """What so many tokens cost that are new to the cache."""
    return cost(MODEL, {"cache_creation_input_tokens": tokens, **more})


@pytest.mark.parametrize("document", REMOTE, ids=["url", "file"])
async def test_a_document_that_the_provider_fetches_is_reserved_as_what_may_fit(provided: Labs, document: Any) -> None:
    hf = app()
    agent = hf.agent("a", model=MODEL, max_tokens=100)
    lab = await provided.use(hf, Script(say("read")))
    await hf.budgets.set(whole(WINDOW))
    small = await agent.enqueue(["What is this?", document])
    await settle(lab, small)
    result = await small.result()
    assert result.outcome == "limited", "it may cost as much as the window, and an answer"
    await hf.budgets.set(whole(WINDOW, output_tokens=100))
    run = await agent.enqueue(["What is this?", document])
    await settle(lab, run)
    assert (await run.result()).outcome == "answered"


async def test_a_document_that_was_counted_once_is_not_reserved_whole_again(provided: Labs) -> None:
    hf = app()

    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("a", model=MODEL, max_tokens=100, tools=[look])
    lab = await provided.use(hf, Script(call("look"), say("read")))
    await hf.budgets.set(whole(WINDOW, output_tokens=100))
    run = await agent.enqueue(["What is this?", REMOTE[0]])
    await settle(lab, run)
    result = await run.result()
    assert (result.outcome, result.turns) == ("answered", 2), "the first answer told how large it is"


async def test_an_image_that_the_provider_fetches_is_reserved_as_the_largest(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("a", model=MODEL, max_tokens=1)
    lab = await provided.use(hf, Script(say("read")))
    await hf.budgets.set(whole(4_800))
    run = await agent.enqueue(["What is this?", Image.from_url("https://example.org/a.png")])
    await settle(lab, run)
    assert (await run.result()).outcome == "limited"
    await hf.budgets.set(whole(8_000))
    run = await agent.enqueue(["What is this?", Image.from_url("https://example.org/a.png")])
    await settle(lab, run)
    assert (await run.result()).outcome == "answered"


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({"caching": "1h"}, {"cache_creation": {"ephemeral_1h_input_tokens": WINDOW}}),
        ({"model": "claude-opus-5-5", "options": {"speed": "fast"}}, {"speed": "fast"}),
        ({"options": {"inference_geo": "us"}}, {"inference_geo": "us"}),
    ],
    ids=["an hour", "fast", "region"],
)
async def test_what_costs_more_is_reserved_as_such(provided: Labs, fields: Any, more: Any) -> None:
    hf = app()
    agent = hf.agent("a", **{"model": MODEL, "max_tokens": 1, **fields})
    lab = await provided.use(hf, Script(say("read")))
    model = fields.get("model", MODEL)
    usage = {"cache_creation_input_tokens": WINDOW, "output_tokens": 1}
    plain, dear = cost(model, usage), cost(model, {**usage, **more})
    assert plain < dear
    for budget, outcome in ((dear - Decimal("0.01"), "limited"), (dear, "answered")):
        await hf.budgets.set(budget)
        run = await agent.enqueue(["What is this?", REMOTE[0]])
        await settle(lab, run)
        assert (await run.result()).outcome == outcome


@pytest.mark.parametrize("caching", [True, "1h"])
async def test_a_turn_with_many_parallel_calls_reads_back_what_the_one_before_wrote(
    provided: Labs, caching: Any
) -> None:
    hf = app()

    @hf.tool(effect="read")
    def look(number: int) -> str:
        """Look."""
        return f"{number} " * 40

    agent = hf.agent("a", model=MODEL, tools=[look], caching=caching, instructions="Be thorough. " * 400)
    many = calls(*[call("look", number=number) for number in range(25)])
    lab = await provided.use(hf, Script(many, many, many, say("done")))
    run = await agent.enqueue("Go")
    await settle(lab, run)
    used = [turn.usage for turn in await run.turns()]
    assert len(used) == 4
    for before, after in pairwise(used):
        assert after.cache_read_tokens == before.cache_read_tokens + before.cache_write_tokens > 0
        assert after.cache_write_tokens > 0
    written, read = sum(turn.cache_write_tokens for turn in used), sum(turn.cache_read_tokens for turn in used)
    rest = {"input_tokens": sum(turn.input_tokens for turn in used), "cache_read_input_tokens": read}
    rest |= {"output_tokens": sum(turn.output_tokens for turn in used), "cache_creation_input_tokens": written}
    hourly = {"cache_creation": {"ephemeral_1h_input_tokens": written}} if caching == "1h" else {}
    assert (await run.result()).usage.cost == cost(MODEL, {**rest, **hourly})


async def test_caching_is_on_off_or_for_an_hour(hf: Holdfast) -> None:
    from holdfast.agents.definition import AgentSpec
    from holdfast.errors import UsageError

    wrong: Any
    for wrong in ("5m", "yes", 1, None):
        with pytest.raises(UsageError, match="caching of agent 'a' must be True, False or"):
            hf.agent("a", model=MODEL, caching=wrong)
        with pytest.raises(UsageError, match="caching of agent 'a' must be True, False or"):
            await hf.agents.create("a", model=MODEL, caching=wrong)
    row = await hf.agents.create("a", model="scripted:", caching="1h")
    assert (await hf.agents[row.id].load()).spec.caching == "1h"
    later = AgentSpec(name="a", model=MODEL, caching="2h")
    assert AgentSpec.parse(later.text()).caching == "2h", "what a later release stores is read"
