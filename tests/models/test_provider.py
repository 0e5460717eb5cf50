"""The simulator as a server: paths, keys, rules, witness; the same seed answers the same."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.models import Script, say
from holdfast.models.anthropic import AnthropicModel
from holdfast.models.simulator import provider, read_rules, simulator
from holdfast.models.spool import read_witness
from tests.models.conftest import MODEL, Converse, ask, request_of

KEY = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
HELLO = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}


class Http:
    """A client that can be rude."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def __call__(self, line: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-length": str(len(data)), **(KEY if headers is None else headers)}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._writer.write(f"{line} HTTP/1.1\r\n{head}\r\n".encode() + data)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.split("content-length: ")[1].split("\r\n")[0])
        return int(answer.split(" ")[1]), json.loads(await self._reader.readexactly(length))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Http]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Http(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_one_connection_reaches_every_path() -> None:
    async with provider() as url, connected(url) as http:
        status, message = await http("POST /v1/messages", HELLO)
        assert (status, message["content"]) == (200, [{"type": "text", "text": "hello"}])
        assert (message["stop_reason"], message["type"], message["role"]) == ("end_turn", "message", "assistant")
        assert (await http("POST /v1/messages/count_tokens", {**HELLO}))[1]["input_tokens"] > 5
        status, models = await http("GET /v1/models?limit=5")
        assert MODEL in [model["id"] for model in models["data"]]
        status, problem = await http("GET /v1/nothing")
        assert (status, problem["error"]["type"]) == (404, "not_found_error")
        assert problem["request_id"].startswith("req_")


@pytest.mark.parametrize(
    ("body", "headers", "status", "type"),
    [
        (HELLO, {}, 401, "authentication_error"),
        (HELLO, {"x-api-key": "k"}, 400, "invalid_request_error"),
        (HELLO, {"authorization": "Bearer t", "anthropic-version": "1"}, 200, None),
        (b"{", KEY, 400, "invalid_request_error"),
        ([], KEY, 400, "invalid_request_error"),
        ({"model": MODEL}, KEY, 400, "invalid_request_error"),
        (HELLO | {"model": 7}, KEY, 400, "invalid_request_error"),
        (HELLO | {"messages": "hello"}, KEY, 400, "invalid_request_error"),
        (HELLO | {"messages": ["hello"]}, KEY, 400, "invalid_request_error"),
    ],
)
async def test_what_is_no_request_is_refused(body: Any, headers: dict[str, str], status: int, type: str | None) -> None:
    async with provider() as url, connected(url) as http:
        got, answer = await http("POST /v1/messages", body, headers)
        assert (got, answer.get("error", {}).get("type")) == (status, type)


async def test_a_body_over_the_limit_is_too_large() -> None:
    async with provider() as url, connected(url) as http:
        status, answer = await http("POST /v1/messages", None, {**KEY, "content-length": str(33 * 1024 * 1024)})
        assert (status, answer["error"]["type"]) == (413, "request_too_large")


async def test_rules_witness_and_stats_are_reached_while_it_runs() -> None:
    async with provider() as url, connected(url) as http:
        assert (await http("POST /_rules", [{"do": {"overloaded": True}}])) == (200, {"rules": 1})
        assert (await http("POST /v1/messages", HELLO))[0] == 529
        assert (await http("POST /_rules", []))[1] == {"rules": 0}
        assert (await http("POST /v1/messages", HELLO))[0] == 200
        assert (await http("POST /_rules", [{"do": {"explode": 1}}]))[0] == 400
        _, lines = await http("GET /_witness")
        assert [line["event"] for line in lines] == ["sent", "done"] * 2
        assert [line.get("rejected") for line in lines] == [None, "Overloaded", None, None]
        _, stats = await http("GET /_stats")
        assert (stats["sent"], stats["done"], stats["rejected"], stats["status 529"]) == (2, 2, 1, 1)
        assert (await http("GET /_nothing"))[0] == 404


async def statuses(rules: Any, calls: int, seed: int = 0, headers: dict[str, str] | None = None) -> list[int]:
    async with provider(rules=rules, seed=seed) as url, connected(url) as http:
        return [(await http("POST /v1/messages", HELLO, KEY | (headers or {})))[0] for _ in range(calls)]


async def test_a_rule_chooses_by_count_share_model_call_and_path() -> None:
    do = {"status": 500}
    assert await statuses([{"match": {"nth": 2}, "do": do}], 4) == [200, 500, 200, 200]
    assert await statuses([{"match": {"every": 2}, "do": do}], 4) == [200, 500, 200, 500]
    assert await statuses([{"match": {"model": "other"}, "do": do}], 1) == [200]
    assert await statuses([{"match": {"model": MODEL}, "do": do}], 1) == [500]
    assert await statuses([{"match": {"path": "/v1/models"}, "do": do}], 1) == [200]
    named = {"match": {"call": "^run-7/"}, "do": do}
    assert await statuses([named], 1, headers={"x-holdfast-call": "run-7/1/1"}) == [500]
    assert await statuses([named], 1, headers={"x-holdfast-call": "run-8/1/1"}) == [200]
    two = [{"match": {"nth": 1}, "do": do}, {"do": {"status": 429}}]
    assert await statuses(two, 2) == [500, 429]


async def test_chance_follows_the_seed() -> None:
    rules = [{"match": {"probability": 0.5}, "do": {"status": 500}}]
    first, again, other = [await statuses(rules, 40, seed) for seed in (1, 1, 2)]
    assert first == again != other
    assert 5 < first.count(500) < 35


@pytest.mark.parametrize("rules", [{}, [1], [{}], [{"do": {"fly": 1}}], [{"match": {"who": 1}, "do": {}}]])
def test_a_rule_that_is_none_is_refused(rules: Any) -> None:
    with pytest.raises(UsageError):
        read_rules(rules)


async def test_the_same_seed_answers_the_same_call_the_same() -> None:
    async def told(seed: int) -> Any:
        async with provider(seed=seed) as url, connected(url) as http:
            answer = await http("POST /v1/messages", HELLO)
            lines = (await http("GET /_witness"))[1]
            return answer, [{**line, "at": 0} for line in lines]

    assert await told(1) == await told(1)
    assert await told(1) != await told(2)


async def test_every_call_is_in_the_file_when_it_arrives_and_with_its_bill_when_it_ends(
    converse: Converse, tmp_path: Path
) -> None:
    file = tmp_path / "witness.jsonl"
    rules = [
        {"match": {"nth": 2}, "do": {"status": 429}},
        {"match": {"nth": 3}, "do": {"cut": {"events": 5}}},
        {"match": {"nth": 4}, "do": {"stall": {"after": 2}}},
    ]
    talk = await converse(*rules, witness=file)
    whole = await talk.reply(request_of(call="r/1/1"))
    await talk.failure(request_of(call="r/2/1"))
    await talk.failure(request_of(call="r/3/1"))
    await talk.failure(request_of(call="r/4/1", idle=0.2))
    await talk.provider.stop()
    lines = read_witness(file)
    done = {line["call"]: line for line in lines if line["event"] == "done"}
    assert {line["call"] for line in lines if line["event"] == "sent"} == set(done)
    assert done["r/1/1"]["billed"] == whole.usage
    assert (done["r/2/1"]["status"], done["r/2/1"]["billed"]) == (429, None)
    assert (done["r/3/1"]["ended"], done["r/4/1"]["ended"]) == ("cut", "gone")
    assert 0 < done["r/3/1"]["billed"]["output_tokens"] < whole.usage["output_tokens"]
    assert done["r/3/1"]["billed"]["input_tokens"] == whole.usage["input_tokens"]


async def test_a_script_that_has_run_out_is_an_error_of_the_server(converse: Converse) -> None:
    talk = await converse(script=Script(say("only")))
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    use = {"type": "tool_use", "id": "t", "name": "x", "input": {}}
    failure = await talk.failure(request_of("a", [use], [result]))
    assert (failure.kind, failure.status) == ("server", 500)


async def test_stopping_ends_calls_that_hang() -> None:
    async with simulator(rules=[{"do": {"stall": {}}}]) as running:
        model = AnthropicModel("k", running.url)
        headers = asyncio.Event()

        async def listen() -> None:
            async for _ in model.stream(request_of(), lambda _: headers.set()):
                pass

        task = asyncio.create_task(listen())
        await headers.wait()
    with pytest.raises(Exception, match="connection ended"):
        await task
    await model.close()


async def test_the_command_runs_one(tmp_path: Path) -> None:
    script, rules, witness = tmp_path / "script.py", tmp_path / "rules.json", tmp_path / "witness.jsonl"
    script.write_text("from holdfast.models import Script, say\nscript = Script(say('from a file'))\n")
    rules.write_text('[{"match": {"nth": 2}, "do": {"status": 404}}]')
    code = "from holdfast.cli.provider import command; command()"
    options = ["--port", "0", "--script", str(script), "--rules", str(rules), "--witness", str(witness)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *options, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode()
    model = AnthropicModel("k", said.split(" on ")[1].split(";")[0])
    assert (await ask(model, request_of(call="r/1/1"))).text == "from a file"
    with pytest.raises(Exception, match="not_found"):
        await ask(model, request_of())
    await model.close()
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 0
    await process.stdout.read()
    assert [line["call"] for line in read_witness(witness)] == ["r/1/1", "r/1/1", "", ""]
