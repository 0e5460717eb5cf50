"""From a request of ours to the body of a chat completions call. Pure: equal requests give equal bodies.

What such an API has no place for is refused by name, so that nothing that was asked for is silently left out. Thinking
is the exception: it belongs to the model that thought it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Request, Wire

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
