"""Models behind a chat completions API, as OpenAI and many servers of open models speak it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.errors import MissingExtra, UsageError, how_to_install
from holdfast.models.facts import place_of
from holdfast.models.failures import ModelFailure, refused, retry_after
from holdfast.models.protocol import Request, ResponseHead, Wire
from holdfast.models.sse import Patience, read_data

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

# From a request of ours to the body of a chat completions call. Pure: equal requests give equal bodies.
#
# What such an API has no place for is refused by name, so that nothing that was asked for is silently left out.
# Thinking
# is the exception: it belongs to the model that thought it.


_THOUGHT = ("thinking", "redacted_thinking")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(request: Request, model: str) -> Wire:
    """What is posted to `/chat/completions`, streaming, with the usage at its end."""
    body: Wire = {
        "model": model,
        "messages": [*_system(request.system), *_messages(request.messages)],
        "max_completion_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_function(tool) for tool in request.tools]
    if request.output_schema is not None:
        schema = {"name": "answer", "schema": dict(request.output_schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body | _options(request.options)


def _options(options: Mapping[str, Any]) -> Wire:
    """Further fields of the body. `effort` and `tool_choice` are ours and translated, all others are passed through."""
    given = dict(options)
    found: Wire = {}
    if (effort := given.pop("effort", None)) is not None:
        found["reasoning_effort"] = effort
    if (choice := given.pop("tool_choice", None)) is not None:
        found["tool_choice"] = _choice(choice)
    return found | given


def _choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind == "tool" and isinstance(choice, Mapping):
        return {"type": "function", "function": {"name": choice["name"]}}
    return _CHOICES.get(str(kind), choice)


def _function(tool: Wire) -> Wire:
    if "input_schema" not in tool:
        raise _refused(f"the server tool {tool.get('type')!r}")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _system(blocks: Sequence[Wire]) -> Iterator[Wire]:
    if blocks:
        yield {"role": "system", "content": "\n\n".join(str(block.get("text", "")) for block in blocks)}


def _messages(messages: Iterable[Wire]) -> Iterator[Wire]:
    for message in messages:
        blocks = _blocks(message["content"])
        yield from _assistant(blocks) if message["role"] == "assistant" else _user(blocks)


def _blocks(content: object) -> list[Wire]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)  # type: ignore[call-overload]


def _assistant(blocks: Sequence[Wire]) -> Iterator[Wire]:
    """One message: its text, and the calls that it asked for."""
    said: Wire = {"role": "assistant", "content": None}
    texts, calls = [], []
    for block in blocks:
        match block["type"]:
            case "text":
                texts.append(str(block["text"]))
            case "tool_use":
                function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
                calls.append({"id": block["id"], "type": "function", "function": function})
            case kind if kind not in _THOUGHT:
                raise _refused(f"a block of type {kind!r} in an answer")
    if texts:
        said["content"] = "".join(texts)
    if calls:
        said["tool_calls"] = calls
    if texts or calls:
        yield said


def _user(blocks: Sequence[Wire]) -> Iterator[Wire]:
    """Results of tools are messages of their own, and stand before what was said beside them."""
    parts = []
    for block in blocks:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block)}
        else:
            parts.append(_part(block))
    if parts:
        plain = len(parts) == 1 and parts[0]["type"] == "text"
        yield {"role": "user", "content": parts[0]["text"] if plain else parts}


def _part(block: Wire) -> Wire:
    match block:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}:
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}}
        case {"type": "image", "source": {"type": "url", "url": url}}:
            return {"type": "image_url", "image_url": {"url": url}}
    raise _refused(f"a block of type {block.get('type')!r}")


def _result(block: Wire) -> str:
    """What a tool gave, as text; an error says so in its words, because the API has no flag for it."""
    content = block.get("content", "")
    parts = _blocks(content)
    if any(part.get("type") != "text" for part in parts):
        raise _refused("a tool's result that is not text")
    text = "".join(str(part["text"]) for part in parts)
    return f"error: {text}" if block.get("is_error") else text


def _refused(what: str) -> ModelFailure:
    return ModelFailure("bad_request", f"a chat completions API does not take {what}.", bought="no")


# From the chunks of a chat completions stream to the stream events that the rest of Holdfast reads. Pure.


_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class ChunkFold:
    """Chunks in, events out: one block is open at a time, the text first, then each call."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._begun = False
        self._open: int | None = None  # the number of the open block
        self._next = 0
        self._text = False  # whether the open block is text
        self._calls: dict[int, int] = {}  # their call's number -> the block's
        self._reason: str | None = None
        self._usage: Wire = {}

    @property
    def complete(self) -> bool:
        """Whether the provider has said why it stopped. Without that, an answer is cut."""
        return self._reason is not None

    def feed(self, chunk: Wire) -> Iterator[Wire]:
        if not self._begun:
            self._begun = True
            yield self._start(chunk)
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = _usage(usage)
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            yield from self._say(delta.get("content") or delta.get("refusal"))
            for call in delta.get("tool_calls") or []:
                yield from self._call(call)
            if choice.get("finish_reason") is not None:
                self._reason = str(choice["finish_reason"])

    def end(self) -> Iterator[Wire]:
        """The last events, once the stream has ended."""
        yield from self._close()
        reason = _REASONS.get(self._reason or "", self._reason)
        if reason == "end_turn" and self._calls:
            reason = "tool_use"  # some servers say "stop" after calls
        yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": self._usage}
        yield {"type": "message_stop"}

    def _start(self, chunk: Wire) -> Wire:
        message: Wire = {
            "id": str(chunk.get("id") or "chat"),
            "type": "message",
            "role": "assistant",
            "model": str(chunk.get("model") or self._model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return {"type": "message_start", "message": message}

    def _say(self, text: Any) -> Iterator[Wire]:
        if not text:
            return
        if not self._text:
            yield from self._begin({"type": "text", "text": ""})
            self._text = True
        yield {"type": "content_block_delta", "index": self._open, "delta": {"type": "text_delta", "text": str(text)}}

    def _call(self, call: Wire) -> Iterator[Wire]:
        number, function = int(call.get("index", 0)), call.get("function") or {}
        if number not in self._calls:
            if not call.get("id") or not function.get("name"):
                raise ModelFailure("malformed", "a tool call began without its id or its name.")
            use = {"type": "tool_use", "id": str(call["id"]), "name": str(function["name"]), "input": {}}
            yield from self._begin(use)
            assert self._open is not None
            self._calls[number] = self._open
        if piece := function.get("arguments"):
            if self._calls[number] != self._open:
                raise ModelFailure("malformed", "two tool calls were written at the same time.")
            delta = {"type": "input_json_delta", "partial_json": str(piece)}
            yield {"type": "content_block_delta", "index": self._open, "delta": delta}

    def _begin(self, block: Wire) -> Iterator[Wire]:
        yield from self._close()
        self._open, self._next = self._next, self._next + 1
        yield {"type": "content_block_start", "index": self._open, "content_block": block}

    def _close(self) -> Iterator[Wire]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._open}
        self._open, self._text = None, False


def _usage(said: Wire) -> Wire:
    """In the words of the rest of Holdfast; what the provider said stays beside them."""
    cached = (said.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": int(said.get("prompt_tokens") or 0) - int(cached),
        "cache_read_input_tokens": int(cached),
        "cache_creation_input_tokens": 0,
        "output_tokens": int(said.get("completion_tokens") or 0),
        "provider_usage": said,
    }


# `OpenAICompatible`: a provider, by its base URL and the variable that holds its key; and a model of it.
#
# The stream is read as bytes, within our own limits. Retries are the runtime's.


_OPENAI = "https://api.openai.com/v1"
_DONE = b"[DONE]"


class OpenAICompatible:
    """`hf.provider("openai", OpenAICompatible(key_env="OPENAI_API_KEY"))`.

    `base_url` is where `/chat/completions` is below, for any server that speaks the same. `key_env` names the
    environment variable that has the key; None: the server asks for none.
    """

    def __init__(
        self, *, key_env: str | None = "OPENAI_API_KEY", base_url: str = _OPENAI, connect: float = 10.0
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"base_url must begin with http:// or https://, not {base_url[:80]!r}.")
        self._key_env = key_env
        self._place = place_of(base_url)
        self._connect = connect

    def open(self, model: str) -> ChatModel:
        if not model.strip():
            raise UsageError('the name of the model is missing: write "openai:gpt-5".')
        place = self._place
        headers = {**place.headers, **({"authorization": f"Bearer {self._key}"} if self._key else {})}
        return ChatModel(model, place.url, headers, dict(place.parameters), self._connect)

    def lack(self) -> str | None:
        if self._key_env is not None and not self._key:
            return f"there is no key: {self._key_env} is not set"
        if importlib.util.find_spec("httpx2") is None:
            return f"its HTTP client is not installed: {how_to_install('openai')}"
        return None

    def credential(self) -> str:
        digest = hashlib.sha256((self._key + self._place.secret).encode()).hexdigest()[:8]
        return f"{self._place.url}#{digest}"

    @property
    def _key(self) -> str:
        return os.environ.get(self._key_env, "") if self._key_env is not None else ""


class ChatModel:
    """One model of a chat completions API."""

    def __init__(
        self, name: str, url: str, headers: dict[str, str], query: dict[str, str], connect: float = 10.0
    ) -> None:
        self._name = name
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers, self._query, self._connect = headers, query, connect
        self._made: AsyncClient | None = None

    async def warm(self) -> None:
        self._client()

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        patience, fold = Patience(request.idle, request.total), ChunkFold(self._name)
        from httpx2 import HTTPError

        async with self._opened(request, patience, answered) as response:
            request_id = response.headers.get("x-request-id")
            try:
                async with aclosing(_bytes(response)) as chunks, aclosing(read_data(chunks, patience)) as texts:
                    async for text in texts:
                        if text.strip() == _DONE:
                            break
                        for event in fold.feed(_chunk(text, response)):
                            yield event
            except ModelFailure as failure:
                failure.request_id = failure.request_id or request_id
                raise
            except HTTPError as problem:
                raise _cut(request_id, problem) from problem
        if not fold.complete:
            raise _cut(request_id)
        for event in fold.end():
            yield event

    @asynccontextmanager
    async def _opened(
        self, request: Request, patience: Patience, answered: Callable[[ResponseHead], None]
    ) -> AsyncIterator[Response]:
        body = chat_body(request, self._name)
        client = self._client()
        from httpx2 import ConnectError, ConnectTimeout, HTTPError, PoolTimeout

        named = {"x-holdfast-call": request.call} if request.call else {}
        asked = client.build_request("POST", self._url, json=body, headers=named, params=self._query or None)
        try:
            async with asyncio.timeout_at(patience.next()):
                response = await client.send(asked, stream=True)
        except TimeoutError:
            raise patience.lost() from None
        except (ConnectError, ConnectTimeout, PoolTimeout) as problem:
            raise ModelFailure("connect", f"the provider cannot be reached: {problem}", bought="no") from problem
        except HTTPError as problem:
            raise _cut(None, problem) from problem
        try:
            headers = dict(response.headers)
            told = ResponseHead(
                status=response.status_code,
                request_id=headers.get("x-request-id"),
                organization=headers.get("openai-organization"),
                retry_after=retry_after(headers),
            )
            answered(told)
            if response.status_code >= 400:
                raise await _refusal(response)
            yield response
        finally:
            await response.aclose()

    async def count_tokens(self, request: Request) -> int:
        """Such an API does not count, so the caller estimates."""
        raise ModelFailure("not_found", f"the provider of {self._name} does not count tokens.", bought="no")

    async def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    def _client(self) -> AsyncClient:
        if self._made is None:
            try:
                from httpx2 import AsyncClient, Timeout
            except ImportError as problem:
                raise MissingExtra("openai", "a chat completions API") from problem
            self._made = AsyncClient(headers=self._headers, timeout=Timeout(None, connect=self._connect))
        return self._made


def _chunk(text: bytes, response: Response) -> Wire:
    try:
        chunk = json.loads(text.decode())
    except (ValueError, RecursionError) as problem:
        raise ModelFailure("malformed", f"a chunk is not JSON: {text[:200]!r}.") from problem
    if not isinstance(chunk, dict):
        raise ModelFailure("malformed", f"a chunk is not an object: {text[:200]!r}.")
    if chunk.get("error"):
        raise refused(response.status_code, chunk, dict(response.headers), streaming=True)
    return chunk


async def _refusal(response: Response) -> ModelFailure:
    text = (await response.aread()).decode(errors="replace")
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    failure = refused(response.status_code, body, dict(response.headers))
    failure.request_id = failure.request_id or response.headers.get("x-request-id")
    return failure


async def _bytes(response: Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


def _cut(request_id: str | None, problem: BaseException | None = None) -> ModelFailure:
    reason = "" if problem is None else f": {type(problem).__name__} {problem}".rstrip()
    return ModelFailure("cut", f"the connection ended before the answer did{reason}.", request_id=request_id)


__all__ = ["OpenAICompatible"]
