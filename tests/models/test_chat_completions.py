"""Models behind a chat completions API, against a small server of one on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.models import ModelFailure, ReplyFold, Request
from holdfast.models.chat_completions import ChatModel, OpenAICompatible, chat_body
from holdfast.models.registry import ProviderRegistry

USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}


@dataclass
class ChatServer:
    """Answers each request with the next of `answers`: chunks to stream, or a status with a body."""

    answers: list[Sequence[dict[str, Any]] | tuple[int, Any]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-l"))
        self.heads.append(head)
        self.asked.append(json.loads(await reader.readexactly(length)))
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            status, said = answer
            body = json.dumps(said).encode()
            first = f"HTTP/1.1 {status} No\r\nretry-after: 7\r\nx-request-id: req_1\r\ncontent-length: {len(body)}\r\n"
            writer.write(first.encode() + b"connection: close\r\n\r\n" + body)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for chunk in answer:
                writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if answer and answer[-1].get("usage"):
                writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def chat_server(*answers: Sequence[dict[str, Any]] | tuple[int, Any]) -> AsyncIterator[ChatServer]:
    made = ChatServer(list(answers))
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield made


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return {"id": "chat_1", "model": "small", "choices": choices, **more}


def saying(*pieces: str) -> list[dict[str, Any]]:
    return [*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop"), chunk(usage=USAGE)]


def calling(name: str, *pieces: str) -> list[dict[str, Any]]:
    begun = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    calls = [chunk({"tool_calls": [each]}) for each in (begun, *rest)]
    return [chunk({"content": "Let me look."}), *calls, chunk({}, "tool_calls"), chunk(usage=USAGE)]


def request(**given: Any) -> Request:
    return Request(**{"model": "x:small", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], **given})


async def reply(model: ChatModel, asked: Request | None = None) -> Any:
    folding = ReplyFold()
    async for event in model.stream(asked or request(), lambda _: None):
        folding.feed(event)
    await model.close()
    return folding.reply()


def opened(server: ChatServer) -> ChatModel:
    return OpenAICompatible(key_env=None, base_url=server.url).open("small")


async def test_an_answer_is_folded_from_its_chunks() -> None:
    async with chat_server(saying("Hel", "lo")) as server:
        said = await reply(opened(server))
    assert [block["text"] for block in said.blocks] == ["Hello"]
    assert said.stop_reason == "end_turn"
    assert (said.usage["input_tokens"], said.usage["cache_read_input_tokens"], said.usage["output_tokens"]) == (8, 4, 5)
    assert server.asked[0]["model"] == "small"
    assert server.asked[0]["stream_options"] == {"include_usage": True}


async def test_a_call_of_a_tool_has_its_arguments() -> None:
    async with chat_server(calling("look_up", '{"wo', 'rd": "cat"}')) as server:
        said = await reply(opened(server))
    assert said.stop_reason == "tool_use"
    assert said.blocks[1] == {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"word": "cat"}}


async def test_the_key_is_sent_and_shown_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")
    async with chat_server(saying("Yes.")) as server:
        provider = OpenAICompatible(key_env="SOME_KEY", base_url=server.url)
        assert provider.lack() is None
        await reply(provider.open("small"))
    assert b"Bearer sk-very-secret" in server.heads[0]
    assert "secret" not in provider.credential()


async def test_without_its_key_a_provider_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert OpenAICompatible(key_env="SOME_KEY").lack() == "there is no key: SOME_KEY is not set"


@pytest.mark.parametrize(
    ("status", "said", "kind", "bought"),
    [
        (401, {"error": {"message": "no", "type": "invalid_api_key"}}, "auth", "no"),
        (429, {"error": {"message": "slow down", "type": "tokens"}}, "rate_limit", "no"),
        (400, {"error": {"message": "bad", "type": "invalid_request_error"}}, "bad_request", "no"),
        (
            400,
            {"error": {"message": "maximum context length is 8", "type": "invalid_request_error"}},
            "context_window",
            "no",
        ),
        (503, {"error": {"message": "busy"}}, "overloaded", "unknown"),
    ],
)
async def test_a_refusal_is_classed_as_any_other(status: int, said: Any, kind: str, bought: str) -> None:
    async with chat_server((status, said)) as server:
        with pytest.raises(ModelFailure) as caught:
            await reply(opened(server))
    assert (caught.value.kind, caught.value.bought, caught.value.request_id) == (kind, bought, "req_1")
    assert caught.value.retry_after == 7


async def test_an_answer_without_its_end_is_cut() -> None:
    async with chat_server([chunk({"content": "Hel"})]) as server:
        with pytest.raises(ModelFailure, match="ended before the answer did"):
            await reply(opened(server))


async def test_a_server_that_is_not_there_costs_nothing() -> None:
    async with chat_server() as server:
        pass
    with pytest.raises(ModelFailure) as caught:
        await reply(opened(server))
    assert (caught.value.kind, caught.value.bought) == ("connect", "no")


def test_a_conversation_with_tools_and_pictures_is_translated() -> None:
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture()]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"word": "cat"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "no such word", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    tool = {"name": "look_up", "description": "Look it up.", "input_schema": {"type": "object"}}
    options = {"effort": "low", "tool_choice": {"type": "tool", "name": "look_up"}, "seed": 7}
    body = chat_body(
        request(messages=conversation, system=[{"type": "text", "text": "Be kind."}], tools=[tool], options=options),
        "small",
    )
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert body["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,QUJD"
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"word": "cat"}'}
    assert body["messages"][3]["content"] == "error: no such word"
    assert body["messages"][4]["content"] == "Go on."
    assert body["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert body["tool_choice"] == {"type": "function", "function": {"name": "look_up"}}
    assert (body["reasoning_effort"], body["seed"]) == ("low", 7)


def picture() -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


@pytest.mark.parametrize(
    "block",
    [{"type": "document", "source": {"type": "text", "data": "x"}}, {"type": "container_upload", "file_id": "f"}],
)
def test_what_such_an_api_has_no_place_for_is_refused_by_name(block: dict[str, Any]) -> None:
    with pytest.raises(ModelFailure, match=block["type"]):
        chat_body(request(messages=[{"role": "user", "content": [block]}]), "small")


@pytest.mark.parametrize("prefix", ["", "Open AI", "scripted", "a" * 33])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        ProviderRegistry().add(prefix, OpenAICompatible(key_env=None))


def test_something_else_is_not_a_provider() -> None:
    with pytest.raises(UsageError, match="a provider has open, lack and credential; str does not"):
        ProviderRegistry().add("mine", "a provider")  # type: ignore[arg-type]
