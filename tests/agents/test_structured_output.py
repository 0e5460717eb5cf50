"""Structured output: asked for in words that the provider takes, read when it is stored, asked for again if wrong."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from holdfast import Holdfast, Limits, RunFailed
from holdfast.agents.definition import Mode
from holdfast.errors import UsageError
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.agents.test_batches import app, pass_time, provided_batches
from tests.support.agents import MODEL, scripted, settle
from tests.support.apps import working

GOOD, BAD = '{"title": "Ulm", "stars": 4, "tags": ["a", "b"]}', '{"title": "Ulm", "stars": 9, "tags": ["a", "b"]}'


class Review(BaseModel):
    """A review."""

    title: str = Field(max_length=8)
    stars: int = Field(ge=1, le=5, description="How good it was")
    tags: list[str] = Field(min_length=2)

    @field_validator("title")
    @classmethod
    def begins_large(cls, title: str) -> str:
        if not title[:1].isupper():
            raise ValueError("a title begins with a capital")
        return title


async def test_ordinary_constraints_are_told_in_words_that_the_provider_takes(provided: Labs) -> None:
    hf = app()

    @hf.tool(strict=True)
    def rate(stars: Annotated[int, Field(ge=1, le=5)]) -> str:
        """Rate it."""
        return str(stars)

    agent = hf.agent("a", model=MODEL, output=Review, tools=[rate])
    async with provided_batches(provided, hf, script=Script(call("rate", stars=2), say(GOOD))) as (lab, provider):
        run = await agent.enqueue("Go")
        await lab.drain()
        assert (await run.result()).output == Review(title="Ulm", stars=4, tags=["a", "b"])
    assert not [line for line in provider.lines if line.get("rejected")]


@pytest.mark.parametrize(
    ("bad", "wrong"),
    [
        (BAD, "stars: Input should be less than or equal to 5"),
        (GOOD.replace("Ulm", "ulm"), "title: Value error, a title begins with a capital"),
        ("I would rather not", "it is not JSON"),
        (GOOD.replace("4", "NaN"), "it is not JSON: NaN is not a number"),
    ],
    ids=["a bound", "a rule of the program's", "no JSON", "no number"],
)
async def test_an_answer_that_does_not_fit_is_asked_for_once_more(provided: Labs, bad: str, wrong: str) -> None:
    hf = app()
    agent = hf.agent("a", model=MODEL, output=Review)
    lab = await provided.use(hf, Script(say(bad), say(GOOD)))
    run = await agent.enqueue("Go")
    await lab.drain()
    result = await run.result()
    assert (result.outcome, result.turns, result.output.stars) == ("answered", 2, 4)
    first, second = lab.asked
    assert second.text.startswith("Your answer is not what was asked for: ")
    assert wrong in second.text
    assert first.body["output_config"] == second.body["output_config"]
    assert "description" in str(first.body["output_config"])
    assert result.text == GOOD, "what did not fit is no part of the answer"


async def test_a_second_answer_that_does_not_fit_is_the_end(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("a", model=MODEL, output=Review)
    lab = await provided.use(hf, Script(say(BAD)))
    for number in (1, 2):  # in one session: each run is corrected for itself
        run = await agent.enqueue("Go", session="s")
        await lab.drain()
        result = await run.result()
        assert (result.outcome, result.turns, result.text) == ("unfit", 2, BAD)
        assert len(lab.asked) == 2 * number
        assert result.limit == "stars: Input should be less than or equal to 5"
        with pytest.raises(RunFailed, match="not of the requested type: stars: Input") as refused:
            _ = result.output
        assert (refused.value.error_type, refused.value.state) == ("output_error", "completed")


async def test_a_run_at_its_last_turn_ends_with_what_it_has(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("a", model=MODEL, output=Review, limits=Limits(turns=1))
    lab = await provided.use(hf, Script(say(BAD), say(GOOD)))
    run = await agent.enqueue("Go")
    await lab.drain()
    assert (await run.result()).outcome == "unfit"
    assert len(lab.asked) == 1


async def test_where_the_type_is_not_at_hand_the_schema_decides(hf: Holdfast) -> None:
    """A stored agent is served by whoever has its tools; its rules in Python are elsewhere."""
    schema = hf.agent("typed", model="scripted:", output=Review).spec.output
    model = scripted(hf, say(BAD), say(GOOD.replace("Ulm", "ulm")))
    row = await hf.agents.create("stored", model=model, output=schema)
    async with working(hf):
        result = await (await hf.agents[row.id].enqueue("Go")).result(timeout="60s")
    assert (result.outcome, result.turns) == ("answered", 2)
    told = [message for message in await hf.sessions[result.session_id].messages() if message.kind == "continuation"]
    assert "stars is at most 5" in str(told)


@pytest.mark.parametrize("good", [True, False])
async def test_in_a_batch_it_is_the_same(provided: Labs, good: bool) -> None:
    hf = app()
    agent = hf.agent("a", model=MODEL, output=Review)
    script = Script(say(BAD), say(GOOD if good else BAD))
    async with provided_batches(provided, hf, script=script) as (lab, provider):
        run = await agent.enqueue("Go", mode="batch")
        await pass_time(lab, run)
        result = await run.result()
        assert (result.outcome, result.turns) == ("answered" if good else "unfit", 2)
    assert sum(line["event"] == "billed" for line in provider.lines) == 2


async def test_who_called_the_agent_is_told_that_its_answer_does_not_fit(provided: Labs) -> None:
    hf = app()
    helper = hf.agent("helper", model=MODEL, output=Review)
    boss = hf.agent("boss", model=MODEL, agents=[helper])
    scripts = {"boss": Script(call("helper", task="Go"), say("done")), "helper": Script(say(BAD))}
    lab = await provided.use(hf, Script.by_agent(scripts))
    run = await boss.enqueue("Go")
    await settle(lab, run)
    (told,) = lab.asked[-1].results
    assert "is not what it was to be: stars: Input should be less" in told.text


class Folder(BaseModel):
    name: str
    inside: list[Folder] = []


class Prices(BaseModel):
    of: dict[str, int]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Folder, "output contains itself"),
        (Prices, "output.of is a mapping of any keys"),
        (list[dict[str, str]], "output.items is a mapping of any keys"),
    ],
)
async def test_what_no_model_could_fill_in_is_refused_where_it_is_defined(hf: Holdfast, kind: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _ = hf.agent("a", model=MODEL, output=kind).spec
    with pytest.raises(UsageError, match=r"output of agent 'b'\.x is not a schema"):
        await hf.agents.create("b", model=MODEL, output={"type": "object", "properties": {"x": True}})


async def test_what_cannot_be_asked_for_is_refused_where_it_is_defined(hf: Holdfast) -> None:
    words = "does not say of which type it is"
    with pytest.raises(UsageError, match=f"output.* {words}"):
        _ = hf.agent("a", model=MODEL, output=list[Any]).spec
    with pytest.raises(UsageError, match=f"output of agent 'b'.x {words}"):
        await hf.agents.create("b", model=MODEL, output={"type": "object", "properties": {"x": {}}})

    @hf.tool(strict=True)
    def look(anything: Any) -> str:
        """Look."""
        return "seen"

    with pytest.raises(UsageError, match=f"strict tool 'look'.anything {words}"):
        _ = hf.agent("c", model=MODEL, tools=[look]).spec


class Note(BaseModel):
    title: str


@pytest.mark.parametrize("mode", ["streaming", "batch"])
async def test_an_answer_that_spells_what_no_store_holds_is_kept(labs: Labs, mode: Mode) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    lab = await labs.use(hf, Script(say('{"title": "U\\u0000m"}')))
    run = await hf.agent("a", model="scripted:", output=Note).enqueue("Go", mode=mode)
    await lab.pass_time(run)
    result = await run.result()
    assert (result.outcome, result.turns, result.output) == ("answered", 1, Note(title="U\0m"))
    assert [turn.attempts for turn in await run.turns()] == [1]
