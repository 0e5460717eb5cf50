"""Content that a provider refuses: it spoils one run at most, never the session that it was said in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Document, Holdfast, Image
from holdfast.agents.runs.end import REFUSED, ContentRefusal
from holdfast.agents.runs.turn import to_replace
from holdfast.app import core_of
from holdfast.errors import BadPayload
from holdfast.events import MessagesRetired, ResultsRefused
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, call, calls, reject, say
from holdfast.testing import Labs
from tests.agents.test_bad_days import an_app, provider
from tests.agents.test_races import intercept
from tests.conftest import Place
from tests.support.agents import MODEL, Noting, audit, results, settle
from tests.support.apps import MakeApp, working
from tests.support.past_kernel import query

NOWHERE = "sqlite:////nowhere/at-all.db"
PICTURE = Image(b"\x89PNG" + bytes(range(256)) * 400)  # large enough to be stored apart
UNREADABLE = {"media": "image"}
pytestmark = pytest.mark.asyncio


def sent(body: Wire) -> list[str]:
    """The texts and the types of the other blocks of a request, in order."""
    return [block.get("text") or block["type"] for message in body["messages"] for block in message["content"]]


def camera(hf: Holdfast) -> Any:
    @hf.tool(effect="read")
    def look(at: str = "") -> Any:
        """Look."""
        return PICTURE if at != "words" else "a gull"

    return look


async def test_a_refused_attachment_spoils_its_run_and_not_the_session(provided: Labs) -> None:
    async with provider(Script(say("Hello.")), {"do": UNREADABLE}) as running:
        hf = an_app(running.url)
        agent = hf.agent("viewer", model=MODEL)
        lab = await provided.use(hf)
        await settle(lab, await agent.enqueue("Good morning", session="s"))
        bad = await agent.enqueue(["What is this?", PICTURE], session="s")
        (row,) = await settle(lab, bad)
        assert (row.state, row.error_type) == ("failed", "streaming_error")
        running.state.script = script = Noting(say("We go on."))
        after = await agent.enqueue("And now?", session="s")
        await settle(lab, after)
        assert (await after.result()).text == "We go on."
        assert sent(script.bodies[0]) == ["Good morning", "Hello.", "And now?"]
        shown = await hf.sessions["s"].messages()
        assert [(message.text, message.retired) for message in shown] == [
            ("Good morning", False),
            ("Hello.", False),
            ("What is this?", True),
            ("And now?", False),
            ("We go on.", False),
        ]
        (told,) = [event for event in await bad.events() if isinstance(event, MessagesRetired)]
        assert told.messages == [shown[2].id]
        assert "Could not process image" in told.reason
        await audit_but_for_rules(hf, running)


async def audit_but_for_rules(hf: Holdfast, running: Any) -> None:
    """Whatever the simulator refused, it refused by its rule."""
    for line in running.lines:
        if line.get("rejected") and "refused by rule" in line["rejected"]:
            line["rejected"] = "refused by rule"
    await audit(hf, running)


async def test_what_rode_along_with_a_refused_message_is_retired_with_it(labs: Labs) -> None:
    def strict(messages: list[Wire]) -> Any:
        pictures = [block for message in messages for block in message["content"] if block["type"] == "image"]
        return reject("Could not process image") if pictures else say("Fine.")

    hf = Holdfast(NOWHERE)
    script = Noting(strict)
    lab = await labs.use(hf, script)
    agent = hf.agent("viewer", model="scripted:")
    first = await agent.enqueue("Look at", session="s")
    joined = await agent.enqueue(["this", PICTURE], session="s", during="coalesce")
    assert joined.id == first.id
    (row,) = await settle(lab, first)
    assert row.state == "failed"
    assert [message.retired for message in await hf.sessions["s"].messages()] == [True, True]
    after = await agent.enqueue("And now?", session="s")
    await settle(lab, after)
    assert sent(script.bodies[-1]) == ["And now?"]


@pytest.mark.long
async def test_a_text_that_is_too_long_spoils_its_run_and_not_the_session(provided: Labs) -> None:
    async with provider(Script(say("Hello."))) as running:
        hf = an_app(running.url)
        agent = hf.agent("reader", model=MODEL)
        lab = await provided.use(hf)
        (row,) = await settle(lab, await agent.enqueue("word " * 850_000, session="s"))
        assert (row.state, row.error_type) == ("failed", "context_window")
        after = await agent.enqueue("And now?", session="s")
        await settle(lab, after)
        assert (await after.result()).text == "Hello."
        assert [message.retired for message in await hf.sessions["s"].messages()] == [True, False, False]


async def test_a_refusal_of_something_else_leaves_what_was_asked(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    lab = await labs.use(hf, Script(reject("max_tokens: 9 > 8, which is the maximum")))
    run = await hf.agent("talker", model="scripted:").enqueue("Hello", session="s")
    (row,) = await settle(lab, run)
    assert row.state == "failed"
    assert [message.retired for message in await hf.sessions["s"].messages()] == [False]


async def test_a_refused_result_is_replaced_by_an_error_and_the_model_asked_once_more(provided: Labs) -> None:
    script = Noting(calls(call("look", at="words"), call("look")), say("I cannot see it."))
    async with provider(script, {"do": UNREADABLE}) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        run = await hf.agent("viewer", model=MODEL, tools=[camera(hf)]).enqueue("What is out there?")
        await settle(lab, run)
        assert (await run.result()).text == "I cannot see it."
        plain, replaced = await results(hf, run.session_id)
        assert plain["content"] == "a gull"
        assert replaced["is_error"]
        assert replaced["content"].startswith(REFUSED)
        assert [turn.attempts for turn in await run.turns()] == [1, 2]
        (told,) = [event for event in await run.events() if isinstance(event, ResultsRefused)]
        assert told.calls == [replaced["tool_use_id"]]
        assert [call.is_error for call in await run.calls()] == [0, 1]
        assert "Could not process" in str((await run.calls())[1].output)
        replay = await hf.runs.replay(run)
        assert replay.differences == ()
        await audit_but_for_rules(hf, running)


async def test_of_several_results_the_one_that_the_provider_names_is_replaced(labs: Labs) -> None:
    def strict(messages: list[Wire]) -> Any:
        bad = [at for at, block in enumerate(messages[-1]["content"]) if "image" in str(block.get("content"))]
        return reject(f"messages.2.content.{bad[1]}.tool_result.content.0: no") if len(bad) > 1 else say("One is left.")

    hf = Holdfast(NOWHERE)
    lab = await labs.use(hf, Script(calls(call("look", at="a"), call("look", at="b")), strict))
    run = await hf.agent("viewer", model="scripted:", tools=[camera(hf)]).enqueue("Look")
    await settle(lab, run)
    assert (await run.result()).text == "One is left."
    assert [block.get("is_error", False) for block in await results(hf, run.session_id)] == [False, True]


@pytest.mark.parametrize("mode", ["streaming", "batch"])
async def test_a_result_that_is_refused_again_fails_the_run_and_not_the_session(labs: Labs, mode: Any) -> None:
    def never(messages: list[Wire]) -> Any:
        return reject("I do not like it")

    hf = Holdfast(NOWHERE)
    lab = await labs.use(hf, Script(call("look"), never))
    agent = hf.agent("viewer", model="scripted:", tools=[camera(hf)])
    run = await agent.enqueue("Look", session="s", mode=mode)
    await lab.pass_time(run)
    assert (await run.refresh()).state == "failed"
    turn = (await run.turns())[1]
    assert (turn.attempts, turn.unknown) == (2, 0)
    core_of(lab.app).book.substitute = None
    script = Noting(say("We go on."))
    hf.script("after", script)
    after = await agent.enqueue("And now?", session="s", model="scripted:after")
    await lab.pass_time(after)
    assert (await after.result()).text == "We go on."
    assert sent(script.bodies[0]) == ["Look", "tool_use", "tool_result", "And now?"]
    assert "image" not in str(script.bodies[0])


async def test_a_refused_result_in_a_batch_is_replaced_and_put_into_the_next_one(labs: Labs) -> None:
    def strict(messages: list[Wire]) -> Any:
        return reject("Could not process image") if "image/png" in str(messages) else say("I cannot see it.")

    hf = Holdfast(NOWHERE)
    lab = await labs.use(hf, Script(call("look"), strict))
    run = await hf.agent("viewer", model="scripted:", tools=[camera(hf)]).enqueue("Look", mode="batch")
    await lab.pass_time(run)
    assert (await run.result()).text == "I cannot see it."
    (told,) = await results(hf, run.session_id)
    assert told["is_error"]
    assert lab.rebought == []


async def test_what_replaces_a_result_takes_its_bytes_out_of_the_history(make_app: MakeApp, place: Place) -> None:
    def strict(messages: list[Wire]) -> Any:
        return reject("Could not process image") if "image/png" in str(messages) else say("Gone.")

    hf = make_app()
    hf.script("strict", Script(call("look"), strict))
    run = await hf.agent("viewer", model="scripted:strict", tools=[camera(hf)]).enqueue("Look")
    await hf.ensure_worker()
    assert (await run.result()).text == "Gone."
    assert query(place, "select count(*) from holdfast.blob") == [(0,)]


async def test_replacing_a_result_again_after_a_lost_answer_changes_nothing(make_app: MakeApp) -> None:
    def strict(messages: list[Wire]) -> Any:
        return reject("Could not process image") if "image/png" in str(messages) else say("Gone.")

    async def twice(go: Callable[[], Awaitable[Any]], _: tuple[Any, ...]) -> Any:
        done.extend([await go(), await go()])
        return done[-1]

    done: list[bool] = []
    hf = make_app(embedded=False)
    hf.script("strict", Script(call("look"), strict))
    agent = hf.agent("viewer", model="scripted:strict", tools=[camera(hf)])
    intercept(hf, fail_and_repair=twice)
    async with working(hf):
        run = await agent.enqueue("Look")
        assert await run.text(timeout="60s") == "Gone."
    assert done == [True, True]
    assert len([event for event in await run.events() if isinstance(event, ResultsRefused)]) == 1


async def test_a_result_that_names_a_tool_which_is_not_there_is_replaced(provided: Labs) -> None:
    async with provider(Script(call("find"), say("There is none."))) as running:
        hf = an_app(running.url)

        @hf.tool(effect="read")
        def find() -> list[Any]:
            """Find a tool."""
            return [{"type": "tool_reference", "tool_name": "nowhere"}]

        lab = await provided.use(hf)
        run = await hf.agent("finder", model=MODEL, tools=[find]).enqueue("Find one")
        await settle(lab, run)
        assert (await run.result()).text == "There is none."
        (told,) = await results(hf, run.session_id)
        assert told["is_error"]
        assert told["content"].startswith(REFUSED)


async def test_which_results_may_be_meant_by_a_refusal() -> None:
    def result(use: str, content: Any) -> Wire:
        return {"type": "tool_result", "tool_use_id": use, "content": content}

    reference = {"type": "tool_reference", "tool_name": "x"}
    told = [result("words", "a gull"), result("found", [reference]), result("text", [{"type": "text", "text": "a"}])]
    sent: list[Wire] = [{"content": "Go"}, {"content": []}, {"content": told}]
    assert to_replace(told, sent, ContentRefusal("bad_request", "one of them is wrong")) == ["found"]
    assert to_replace(told, sent, ContentRefusal("bad_request", "messages.2.content.0: it is wrong")) == ["words"]
    assert to_replace(told, sent, ContentRefusal("bad_request", "tools.0: it is wrong")) == []


TOO_LARGE = Image(b"\x89PNG" + bytes(5 * 1024 * 1024))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Image(b"<svg/>", "image/svg+xml"), "image/svg"),
        (TOO_LARGE, "5,242,880"),
        (Document(b"PK..", "application/vnd.ms-excel"), "convert the document"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%%"}}, "not base64"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}, "no bytes"),
    ],
    ids=["a kind of picture", "a large picture", "a kind of document", "no base64", "no bytes"],
)
async def test_what_no_provider_takes_is_refused_before_anything_is_written(labs: Labs, part: Any, says: str) -> None:
    hf = Holdfast(NOWHERE)
    await labs.use(hf, Script(say("never")))
    agent = hf.agent("viewer", model="scripted:")
    run = await agent.enqueue("Hello", session="s")
    with pytest.raises(BadPayload, match=says):
        await agent.enqueue(["Look", part], session="s")
    with pytest.raises(BadPayload, match=says):
        await run.steer(part)
    assert len(await hf.runs.list()) == 1


async def test_what_a_tool_returns_and_no_provider_takes_becomes_an_error_text(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)

    @hf.tool(effect="once")
    def scan() -> list[Any]:
        """Scan."""
        return ["Two of them:", TOO_LARGE, Image(b"\x89PNG1")]

    lab = await labs.use(hf, Script(call("scan"), say("One was too large.")))
    run = await hf.agent("viewer", model="scripted:", tools=[scan]).enqueue("Scan")
    await settle(lab, run)
    (told,) = await results(hf, run.session_id)
    assert [part["type"] for part in told["content"]] == ["text", "text", "image"]
    assert told["content"][1]["text"].startswith("Error: the tool returned something that cannot be shown: the picture")
    assert lab.calls("scan") == [{}], "the tool has done its work, and is not run again"


@pytest.mark.parametrize(
    ("kind", "words", "about"),
    [
        ("bad_request", "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum", True),
        ("bad_request", "Could not process image", True),
        ("invalid_request_error", "The PDF specified was not valid.", True),
        ("bad_request", "tools.0.custom.name: String should match pattern", False),
        ("bad_request", "`temperature` is not supported for this model.", False),
        ("bad_request", '"thinking.type.enabled" is not supported for this model.', False),
        ("context_window", "request_too_large", True),
        ("not_found", "File not found: file_abc", True),
        ("not_found", "model: claude-nobody", False),
        ("overloaded", "Overloaded", False),
    ],
)
async def test_a_refusal_is_about_content_or_about_the_agent(kind: str, words: str, about: bool) -> None:
    assert ContentRefusal(kind, f"{kind}: {words}").is_about([PICTURE.block()]) is about
    if kind == "context_window":
        assert not ContentRefusal(kind, words).is_about([{"type": "text", "text": "long"}])
