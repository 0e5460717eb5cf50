"""Batches through the official SDK, against the simulator: made, watched, listed, canceled and read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from holdfast.clock import Ports
from holdfast.models import Batches, Model, ModelFailure, ResponseHead, Script, say
from holdfast.models.anthropic import AnthropicModel
from holdfast.testing.clock import LabClock
from tests.models.conftest import Conversation, Converse, item, items, request_of, results, submit, types

HOUR = 3600 * 1_000_000


@pytest.fixture
def clock() -> LabClock:
    return LabClock()


async def test_a_batch_goes_round(converse: Converse) -> None:
    talk = await converse()
    told: list[ResponseHead] = []
    made = await talk.model.submit_batch(items(3), call="batch-1", total=60, answered=told.append)
    assert (made.status, made.ended, made.size, made.counts["processing"]) == ("in_progress", False, 3, 3)
    assert [(each.status, each.organization) for each in told] == [(200, "org_simulated")]
    ended = await talk.model.get_batch(made.id)
    assert (ended.id, ended.ended, ended.size, ended.counts["succeeded"]) == (made.id, True, 3, 3)
    lines = {line.custom_id: line for line in await results(talk.model, made.id)}
    assert {id: line.type for id, line in lines.items()} == dict.fromkeys(("r-1", "r-2", "r-3"), "succeeded")
    message = lines["r-2"].message or {}
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "hello 2"}], "end_turn")
    assert message["usage"]["service_tier"] == "batch"
    (inside,) = talk.provider.batches
    assert (inside["id"], inside["call"]) == (made.id, "batch-1")


async def test_the_model_takes_batches_and_streams() -> None:
    model = AnthropicModel("k")
    assert isinstance(model, Batches)
    by_type: Model = model
    assert by_type is model


async def test_an_answer_in_a_batch_can_be_continued_outside(converse: Converse) -> None:
    """Thinking is bound to what came before it, in a batch as elsewhere."""
    from holdfast.models import call, think

    tool = {"name": "weather", "input_schema": {"type": "object"}}
    talk = await converse(script=Script(think("hm"), call("weather"), say("sunny")))
    made = await submit(talk.model, item("a", "Oslo?", tools=[tool]))
    (line,) = await results(talk.model, made.id)
    assert line.message is not None
    use = line.message["content"][1]["id"]
    answer = [{"type": "tool_result", "tool_use_id": use, "content": "sun"}]
    reply = await talk.reply(request_of("Oslo?", line.message["content"], answer, tools=[tool]))
    assert reply.text == "sunny"


async def test_a_batch_ends_by_the_providers_clock(converse: Converse, clock: LabClock) -> None:
    talk = await converse(batch_seconds=3600, ports=Ports(clock=clock))
    made = await submit(talk.model, *items(2))
    await clock.advance("59m")
    assert await talk.model.get_batch(made.id) == made
    with pytest.raises(ModelFailure, match="no available results") as early:
        await results(talk.model, made.id)
    assert (early.value.kind, early.value.bought) == ("not_found", "no")
    await clock.advance("2m")
    ended = await talk.model.get_batch(made.id)
    assert (ended.ended_us, ended.expires_us) == (made.created_us + HOUR, made.created_us + 24 * HOUR)
    assert await types(talk.model, made.id) == {"r-1": "succeeded", "r-2": "succeeded"}


async def test_what_there_was_no_time_for_expires_after_a_day(converse: Converse, clock: LabClock) -> None:
    talk = await converse(batch_seconds=48 * 3600, ports=Ports(clock=clock))
    made = await submit(talk.model, *items(4))
    await clock.advance("30h")
    ended = await talk.model.get_batch(made.id)
    assert ended.ended_us == made.created_us + 24 * HOUR
    assert (ended.counts["succeeded"], ended.counts["expired"]) == (2, 2)
    assert sorted((await types(talk.model, made.id)).values()) == ["expired", "expired", "succeeded", "succeeded"]


async def test_every_page_of_the_list_is_read_newest_first(converse: Converse, clock: LabClock) -> None:
    talk = await converse(ports=Ports(clock=clock))
    ids: list[str] = []
    for _ in range(205):
        ids.append((await submit(talk.model, item("a"))).id)
        await clock.advance("1s")
    listed = await talk.model.list_batches(0)
    assert [batch.id for batch in listed] == ids[::-1]
    assert pages(talk) == 3
    middle = listed[50].created_us
    assert [batch.id for batch in await talk.model.list_batches(middle)] == ids[::-1][:51]
    assert pages(talk) == 4  # what is older than was asked for is not paged through
    assert await talk.model.list_batches(listed[0].created_us + 1) == []


def pages(talk: Conversation) -> int:
    """How often the list was asked for. A submit goes to the same path, and is named."""
    return sum(line["event"] == "sent" and not line["call"] for line in talk.provider.lines)


async def test_another_account_sees_nothing_of_a_batch(converse: Converse) -> None:
    talk = await converse()
    made = await submit(talk.model, item("a"))
    other = AnthropicModel("sk-other", talk.provider.url)
    assert await other.list_batches(0) == []
    looks: list[Callable[[], Awaitable[object]]] = [
        lambda: other.get_batch(made.id),
        lambda: other.cancel_batch(made.id),
        lambda: results(other, made.id),
        lambda: talk.model.get_batch("msgbatch_nobody"),
        lambda: talk.model.get_batch("../../models"),
    ]
    for look in looks:
        with pytest.raises(ModelFailure) as caught:
            await look()
        assert (caught.value.kind, caught.value.bought) == ("not_found", "no")
    await other.close()


async def test_a_cancel_ends_a_batch_with_what_it_has(converse: Converse, clock: LabClock) -> None:
    talk = await converse(batch_seconds=3600, ports=Ports(clock=clock))
    made = await submit(talk.model, *items(4))
    await clock.advance("30m")
    canceled = await talk.model.cancel_batch(made.id)
    assert (canceled.status, canceled.counts["processing"]) == ("canceling", 4)
    ended = await talk.model.get_batch(made.id)
    assert (ended.status, ended.counts["succeeded"], ended.counts["canceled"]) == ("ended", 2, 2)
    assert sorted((await types(talk.model, made.id)).values()) == ["canceled", "canceled", "succeeded", "succeeded"]
    billed = [line["call"] for line in talk.provider.lines if line["event"] == "billed"]
    assert billed == ["r-1", "r-2"]
    with pytest.raises(ModelFailure, match="already ended") as late:
        await talk.model.cancel_batch(made.id)
    assert (late.value.kind, late.value.bought) == ("bad_request", "no")


async def test_canceling_may_take_its_time(converse: Converse, clock: LabClock) -> None:
    slow = {"match": {"path": "/v1/messages/batches/*/cancel"}, "do": {"slow_batch": 60}}
    talk = await converse(slow, batch_seconds=3600, ports=Ports(clock=clock))
    made = await submit(talk.model, *items(2))
    for _ in range(2):
        assert (await talk.model.cancel_batch(made.id)).status == "canceling"
        assert (await talk.model.get_batch(made.id)).status == "canceling"
    await clock.advance("1m")
    assert (await talk.model.get_batch(made.id)).counts["canceled"] == 2


async def test_what_cannot_be_a_batch_is_not_even_sent(converse: Converse) -> None:
    talk = await converse()
    with pytest.raises(ModelFailure, match="is given to two requests"):
        await submit(talk.model, item("a"), item("a"))
    assert talk.provider.lines == []


async def test_params_that_are_not_json_are_refused(converse: Converse) -> None:
    talk = await converse()
    with pytest.raises(ModelFailure, match="not valid JSON") as caught:
        await submit(talk.model, item("a"), item("b")._replace(params="{"))
    assert (caught.value.kind, caught.value.bought, talk.provider.batches) == ("bad_request", "no", [])


async def test_odd_text_arrives_as_it_was_written(converse: Converse) -> None:
    talk = await converse()
    text = 'ü \u2028 "quoted" \\ \x7f 🚣'
    made = await submit(talk.model, item("a", text))
    (line,) = await results(talk.model, made.id)
    assert (line.message or {})["content"][0]["text"] == text


async def test_what_is_no_text_is_refused(converse: Converse) -> None:
    talk = await converse()
    with pytest.raises(ModelFailure, match="not valid JSON") as caught:
        await submit(talk.model, item("a", "half a rower: \ud83d"))
    assert (caught.value.kind, caught.value.bought) == ("bad_request", "no")


LOST = {"path": "/v1/messages/batches", "method": "POST"}


@pytest.mark.parametrize(
    ("do", "kind", "bought", "made"),
    [
        ({"lost_answer": True}, "cut", "unknown", 1),
        ({"lost_answer": {"status": 502}}, "server", "unknown", 1),
        ({"lost_answer": {"stall": True}}, "timeout", "unknown", 1),
        ({"cut": {"headers": True}}, "cut", "unknown", 0),
        ({"slow_headers": None}, "timeout", "unknown", 0),
        ({"status": 500}, "server", "unknown", 0),
        ({"status": 503}, "server", "unknown", 0),
        ({"status": 504}, "timeout", "unknown", 0),
        ({"status": 408, "type": "timeout_error"}, "timeout", "unknown", 0),
        ({"overloaded": True}, "overloaded", "no", 0),
        ({"status": 429, "retry_after": 5}, "rate_limit", "no", 0),
        ({"status": 413}, "context_window", "no", 0),
        ({"status": 400}, "bad_request", "no", 0),
        ({"status": 401}, "auth", "no", 0),
        ({"status": 402}, "spend_limit", "no", 0),
    ],
)
async def test_a_failed_submit_says_whether_there_may_be_a_batch(
    converse: Converse, do: dict[str, Any], kind: str, bought: str, made: int
) -> None:
    talk = await converse({"match": {**LOST, "nth": 1}, "do": do})
    told: list[ResponseHead] = []
    total = 2 if "slow_headers" in do or do.get("lost_answer") == {"stall": True} else 60
    with pytest.raises(ModelFailure) as caught:
        await talk.model.submit_batch(items(2), call="c", total=total, answered=told.append)
    assert (caught.value.kind, caught.value.bought) == (kind, bought)
    assert (caught.value.status, caught.value.retry_after) == (
        (told[0].status, told[0].retry_after) if told else (None, None)
    )
    assert len(talk.provider.batches) == made
    assert (
        len(await talk.model.list_batches(0)) == made
    )  # neither we nor the SDK tried again, and the next call is well


async def test_nobody_listening_is_no_batch(converse: Converse) -> None:
    talk = await converse()
    await talk.provider.stop()
    with pytest.raises(ModelFailure) as caught:
        await submit(talk.model, item("a"))
    assert (caught.value.kind, caught.value.bought) == ("connect", "no")


async def test_no_key_is_no_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    model = AnthropicModel(base_url="http://127.0.0.1:1")
    for look in (submit(model, item("a")), model.get_batch("a"), results(model, "a")):
        with pytest.raises(ModelFailure) as caught:
            await look
        assert (caught.value.kind, caught.value.bought) == ("auth", "no")
    await model.close()


Rude = Callable[[dict[str, str], asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def failure_against(rude: Rude, asked: Any, total: float = 60) -> ModelFailure:
    """What a submit fails with, against a server that has read the head of it and goes on as it likes."""

    tasks: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        with suppress(asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await rude(dict(line.split(": ", 1) for line in head.split("\r\n") if ": " in line), reader, writer)
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        model = AnthropicModel("k", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ModelFailure) as caught:
            await model.submit_batch(asked, call="c", total=total, answered=lambda _: None)
        await model.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
    return caught.value


LARGE = [item(f"r-{n}", "x" * 1_000_000) for n in range(40)]  # more than the sockets hold


async def test_a_connection_that_ends_within_the_upload_is_no_batch() -> None:
    async def leave(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1_000_000)

    failure = await failure_against(leave, LARGE)
    assert (failure.kind, failure.bought) == ("cut", "no")


async def test_time_that_runs_out_within_the_upload_is_no_batch() -> None:
    async def idle(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    failure = await failure_against(idle, LARGE, total=0.5)
    assert (failure.kind, failure.bought) == ("timeout", "no")


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}", b'{"id": "msgbatch_1"}'])
async def test_an_answer_that_cannot_be_read_may_be_a_batch(answer: bytes) -> None:
    async def babble(head: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int(head["content-length"]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()
        await asyncio.Event().wait()

    failure = await failure_against(babble, items(1))
    assert (failure.kind, failure.bought) == ("malformed", "unknown")


async def test_a_submit_says_what_it_is_and_how_long() -> None:
    seen: dict[str, Any] = {}

    async def note(head: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.update(head, body=await reader.readexactly(int(head["content-length"])))

    failure = await failure_against(note, items(2))
    assert (failure.kind, failure.bought) == ("cut", "unknown")  # it was all there, and the answer never came
    assert (seen["content-type"], seen["x-holdfast-call"]) == ("application/json", "c")
    assert "transfer-encoding" not in seen
    assert [each["custom_id"] for each in json.loads(seen["body"])["requests"]] == ["r-1", "r-2"]


@pytest.mark.parametrize("verb", ["get", "list", "cancel"])
@pytest.mark.parametrize(
    ("do", "kind"),
    [({"status": 500}, "server"), ({"cut": {"headers": True}}, "cut"), ({"overloaded": True}, "overloaded")],
)
async def test_asking_about_batches_buys_nothing(converse: Converse, verb: str, do: dict[str, Any], kind: str) -> None:
    path = {"list": "/v1/messages/batches", "get": "/v1/messages/batches/*", "cancel": "/v1/messages/batches/*/cancel"}
    talk = await converse({"match": {"path": path[verb]}, "do": do})
    look: dict[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: talk.model.list_batches(0),
        "get": lambda: talk.model.get_batch("a"),
        "cancel": lambda: talk.model.cancel_batch("a"),
    }
    with pytest.raises(ModelFailure) as caught:
        await look[verb]()
    assert (caught.value.kind, caught.value.bought) == (kind, "no")


async def test_the_first_line_is_there_before_the_download_has_ended(converse: Converse) -> None:
    talk = await converse({"match": {"path": "/v1/messages/batches/*/results"}, "do": {"stall": {"after": 2}}})
    made = await submit(talk.model, *items(3))
    async with aclosing(talk.model.batch_results(made.id)) as lines:
        assert [(await anext(lines)).custom_id for _ in range(2)] == ["r-1", "r-2"]
    while not (ended := [line for line in talk.provider.lines if line.get("ended") == "gone"]):  # noqa: ASYNC110
        await asyncio.sleep(0.005)  # it is said on the other side of a socket
    assert ended[0]["path"].endswith("/results")  # closing the iterator has closed the download


@pytest.mark.long
async def test_a_message_of_many_megabytes_comes_in_one_line(converse: Converse) -> None:
    talk = await converse(script=Script(say("x" * 20_000_000)))
    made = await submit(talk.model, *items(2))
    sizes = [len((line.message or {})["content"][0]["text"]) for line in await results(talk.model, made.id)]
    assert sizes == [20_000_000, 20_000_000]
