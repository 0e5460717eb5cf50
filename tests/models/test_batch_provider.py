"""The simulator's batches: as strict as the provider, seen through the SDK's typed calls and through none."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Ports
from holdfast.models import ModelFailure, Script, say
from holdfast.models.anthropic import AnthropicModel
from holdfast.models.simulator import provider, simulator
from holdfast.models.spool import read_witness
from holdfast.testing.clock import LabClock
from tests.models.conftest import MODEL, Converse, item, items, request_of, results, submit, types
from tests.models.test_provider import HELLO, KEY, connected

PATH = "/v1/messages/batches"
FILE = {"type": "document", "source": {"type": "file", "file_id": "file_nobody"}}


def asked(*ids: Any, **more: Any) -> dict[str, Any]:
    return {"requests": [{"custom_id": id, "params": HELLO} for id in ids], **more}


async def test_every_typed_call_of_the_sdk_is_answered() -> None:
    import anthropic

    clock = LabClock()
    ports = Ports(clock=clock)
    async with (
        provider(batch_seconds=60, ports=ports) as url,
        anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client,
    ):
        batches = client.messages.batches
        requests: Any = asked("a", "b")["requests"]
        first = await batches.create(requests=requests)
        assert (first.processing_status, first.request_counts.processing, first.results_url) == ("in_progress", 2, None)
        assert (first.expires_at - first.created_at).days == 1
        with pytest.raises(anthropic.BadRequestError, match="still processing"):
            await batches.delete(first.id)
        second = await batches.create(requests=requests)
        assert (await batches.cancel(second.id)).cancel_initiated_at is not None
        await clock.advance("1m")
        ended = await batches.retrieve(first.id)
        assert (ended.processing_status, ended.request_counts.succeeded) == ("ended", 2)
        assert ended.ended_at is not None
        read = {line.custom_id: line.result async for line in await batches.results(first.id)}
        assert read["a"].type == "succeeded"
        assert read["a"].message.usage.service_tier == "batch"
        assert [line.result.type async for line in await batches.results(second.id)] == ["canceled", "canceled"]
        assert [batch.id async for batch in await batches.list(limit=1)] == [second.id, first.id]
        assert [batch.id async for batch in await batches.list(limit=1, before_id=first.id)] == [second.id]
        assert (await batches.delete(first.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await batches.retrieve(first.id)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not valid JSON"),
        ([], "valid dictionary"),
        ({}, "requests: Field required"),
        (asked(), "at least 1 item"),
        (asked("a", model=MODEL), "model: Extra inputs are not permitted"),
        ({"requests": [7]}, "requests.0: Input should be a valid dictionary"),
        ({"requests": [{"custom_id": "a", "params": HELLO, "priority": 1}]}, "requests.0.priority: Extra inputs"),
        ({"requests": [{"custom_id": "a"}]}, "requests.0.params: Field required"),
        ({"requests": [{"params": HELLO}]}, "requests.0.custom_id: String should match pattern"),
        (asked("a", "b c"), "requests.1.custom_id: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"),
        (asked("x" * 65), "requests.0.custom_id: String should match pattern"),
        (asked("a", "b", "a"), "requests.2.custom_id: a is not unique"),
    ],
)
async def test_what_is_no_batch_is_refused_as_a_whole(body: Any, words: str) -> None:
    async with simulator() as running, connected(running.url) as http:
        status, answer = await http(f"POST {PATH}", body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert words in answer["error"]["message"]
        assert running.batches == []


@pytest.mark.long
async def test_more_requests_than_the_provider_takes_are_refused() -> None:
    async with provider() as url, connected(url) as http:
        body = json.dumps(asked(*map(str, range(100_001)))).encode()
        status, answer = await http(f"POST {PATH}", body)
        assert (status, "at most 100000 items" in answer["error"]["message"]) == (400, True)


async def test_what_is_wrong_with_one_request_is_said_in_its_result(converse: Converse) -> None:
    talk = await converse()
    made = await submit(
        talk.model,
        item("good"),
        item("small", max_tokens=0),
        item("unknown", model="claude-nobody-1"),
        item("extra", temprature=1),
        item("stream", stream=True),
        item("fast", speed="fast"),
        item("empty", messages=[]),
        item("file", messages=[{"role": "user", "content": [FILE]}]),
        item("also-good"),
    )
    ended = await talk.model.get_batch(made.id)
    assert (ended.counts["succeeded"], ended.counts["errored"]) == (2, 7)
    errors = {line.custom_id: line.error for line in await results(talk.model, made.id) if line.error}
    assert {id: (error["type"], error["message"]) for id, error in errors.items()} == {
        "small": ("invalid_request_error", "max_tokens: Input should be greater than or equal to 1"),
        "unknown": ("not_found_error", "model: claude-nobody-1"),
        "extra": ("invalid_request_error", "temprature: Extra inputs are not permitted"),
        "stream": ("invalid_request_error", "stream: not supported in a batch"),
        "fast": ("invalid_request_error", "speed: not supported in a batch"),
        "file": ("not_found_error", "File not found: file_nobody"),
        "empty": ("invalid_request_error", "messages: at least one message is required"),
    }


async def test_a_script_that_has_run_out_is_an_error_of_one_request(converse: Converse) -> None:
    talk = await converse(script=Script(say("only")))
    use = [{"type": "tool_use", "id": "t", "name": "x", "input": {}}]
    answer = [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]
    late = request_of("a", use, answer).body()["messages"]
    made = await submit(talk.model, item("a"), item("late", messages=late))
    lines = {line.custom_id: line for line in await results(talk.model, made.id)}
    assert lines["a"].type == "succeeded"
    assert (lines["late"].error or {})["type"] == "api_error"


async def test_a_request_that_breaks_the_provider_leaves_the_others_alone(converse: Converse) -> None:
    talk = await converse(
        script=Script(lambda messages: say("x" if "2" not in messages[0]["content"] else messages[7]["content"]))
    )
    made = await submit(talk.model, *items(3))
    assert await types(talk.model, made.id) == {"r-1": "succeeded", "r-2": "errored", "r-3": "succeeded"}
    assert (await talk.model.get_batch(made.id)).counts["errored"] == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 200),
        ("?limit=1000", 200),
        ("?limit=0", 400),
        ("?limit=1001", 400),
        ("?limit=many", 400),
        ("?page=2", 400),
        ("?after_id=msgbatch_nobody", 400),
        ("?after_id=a&before_id=b", 400),
    ],
)
async def test_a_list_is_asked_for_properly(query: str, status: int) -> None:
    async with provider() as url, connected(url) as http:
        assert (await http(f"GET {PATH}{query}"))[0] == status


async def test_a_list_has_pages_in_both_directions_and_no_custom_ids() -> None:
    async with provider() as url, connected(url) as http:
        ids = [(await http(f"POST {PATH}", asked("secret")))[1]["id"] for _ in range(5)][::-1]

        async def page(query: str) -> tuple[list[str], bool]:
            _, answer = await http(f"GET {PATH}?{query}")
            assert "secret" not in json.dumps(answer)
            listed = [each["id"] for each in answer["data"]]
            assert [answer["first_id"], answer["last_id"]] == ([listed[0], listed[-1]] if listed else [None, None])
            return listed, answer["has_more"]

        assert await page("limit=2") == (ids[:2], True)
        assert await page(f"limit=2&after_id={ids[1]}") == (ids[2:4], True)
        assert await page(f"limit=2&after_id={ids[3]}") == (ids[4:], False)
        assert await page(f"limit=2&after_id={ids[4]}") == ([], False)
        assert await page(f"limit=2&before_id={ids[3]}") == (ids[1:3], True)
        assert await page(f"limit=2&before_id={ids[1]}") == (ids[:1], False)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"PUT {PATH}", 404),
        (f"PUT {PATH}/ID", 405),
        (f"GET {PATH}/ID/cancel", 405),
        (f"POST {PATH}/ID/results", 405),
        (f"GET {PATH}/ID/nothing", 404),
        (f"GET {PATH}es", 404),
    ],
)
async def test_a_path_or_method_that_is_none_is_refused(line: str, status: int) -> None:
    async with provider() as url, connected(url) as http:
        _, made = await http(f"POST {PATH}", asked("a"))
        assert (await http(line.replace("ID", made["id"])))[0] == status


async def test_only_a_batch_may_be_larger_than_other_requests() -> None:
    large = json.dumps(asked("a") | {"padding": "x" * 33 * 1024 * 1024}).encode()
    async with provider() as url:
        async with connected(url) as http:
            status, answer = await http(f"POST {PATH}", large)
            assert (status, answer["error"]["message"]) == (400, "padding: Extra inputs are not permitted")
        async with connected(url) as http:
            assert (await http("POST /v1/messages", large))[0] == 413  # heard although it was still sending
        async with connected(url) as http:
            status, answer = await http(f"POST {PATH}", None, {**KEY, "content-length": str(257 * 1024 * 1024)})
            assert (status, answer["error"]["type"]) == (413, "request_too_large")


async def test_a_large_batch_may_come_in_chunks() -> None:
    large = json.dumps(asked("a") | {"padding": "x" * 33 * 1024 * 1024}).encode()
    pieces = [large[at : at + 500_000] for at in range(0, len(large), 500_000)]
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    async with provider() as url, connected(url) as http:
        headers = {**KEY, "transfer-encoding": "chunked", "content-length": "0"}
        assert (await http(f"POST {PATH}", data, headers))[0] == 400


async def test_the_witness_knows_each_batch_and_each_bill(tmp_path: Path) -> None:
    file, clock = tmp_path / "witness.jsonl", LabClock()
    async with simulator(witness=file, batch_seconds=60, ports=Ports(clock=clock)) as running:
        model = AnthropicModel("k", running.url)
        made = await submit(model, *items(2), item("bad", max_tokens=0), call="worker-1/7")
        begun = [line for line in running.lines if line["event"] in ("batch", "billed")]
        assert begun == [{"event": "batch", "at": made.created_us, "batch": made.id, "size": 3, "call": "worker-1/7"}]
        await clock.advance("5m")
    await model.close()
    bills = [line for line in read_witness(file) if line["event"] == "billed"]  # though nobody has looked since
    assert [bill["call"] for bill in bills] == ["r-1", "r-2"]
    assert bills[0]["usage"]["service_tier"] == "batch"
    assert {(bill["batch"], bill["model"], bill["tier"], bill["at"] - made.created_us) for bill in bills} == {
        (made.id, MODEL, "batch", 60_000_000)
    }


async def test_a_test_sees_the_custom_ids() -> None:
    clock = LabClock()
    async with provider(batch_seconds=60, ports=Ports(clock=clock)) as url, connected(url) as http:
        _, made = await http(f"POST {PATH}", asked("a", "b"), KEY | {"x-holdfast-call": "c"})
        _, (inside,) = await http("GET /_batches")
        assert (inside["id"], inside["account"], inside["call"]) == (made["id"], "k", "c")
        assert (inside["processing_status"], inside["requests"]) == (
            "in_progress",
            {"a": "processing", "b": "processing"},
        )
        await clock.advance("1m")
        _, (inside,) = await http("GET /_batches")
        assert (inside["processing_status"], inside["requests"]) == ("ended", {"a": "succeeded", "b": "succeeded"})


async def test_the_same_seed_makes_the_same_batches() -> None:
    async def told(seed: int) -> Any:
        async with provider(seed=seed, ports=Ports(clock=LabClock())) as url:
            model = AnthropicModel("k", url)
            made = await submit(model, *items(2))
            read = await results(model, made.id)
            await model.close()
            return made.id, read

    assert await told(1) == await told(1)
    assert (await told(1))[0] != (await told(2))[0]


async def test_the_command_says_how_long_a_batch_takes() -> None:
    code = "from holdfast.cli.provider import command; command()"
    options = ["--port", "0", "--batch-time", "3600"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *options, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode()
    model = AnthropicModel("k", said.split(" on ")[1].split(";")[0])
    made = await submit(model, item("a"))
    assert (await model.get_batch(made.id)).status == "in_progress"
    await model.cancel_batch(made.id)
    assert await types(model, made.id) == {"a": "canceled"}
    with pytest.raises(ModelFailure, match="already ended"):
        await model.cancel_batch(made.id)
    await model.close()
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 0
    await process.stdout.read()
