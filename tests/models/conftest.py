"""A simulated provider for each test, and the official SDK pointed at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from holdfast.models import (
    Batches,
    BatchItem,
    BatchLine,
    BatchStatus,
    Model,
    ModelFailure,
    Reply,
    ReplyFold,
    Request,
    ResponseHead,
)
from holdfast.models.anthropic import AnthropicModel
from holdfast.models.simulator import SimulatedProvider, simulator

MODEL = "claude-sonnet-5-5"
WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def request_of(*messages: Any, **more: Any) -> Request:
    """A request whose messages are written short: text is the user's, a list of blocks whose turn it is."""
    roles = ("user", "assistant")
    wire = [{"role": roles[number % 2], "content": content} for number, content in enumerate(messages or ("hello",))]
    return Request(**{"model": MODEL, "max_tokens": 1000, "messages": wire, **more})


async def ask(model: Model, request: Request) -> Reply:
    """The whole reply."""
    folding = ReplyFold()
    async for event in model.stream(request, lambda _: None):
        folding.feed(event)
    return folding.reply()


def item(id: str, text: str = "hello", **more: Any) -> BatchItem:
    """A request of a batch."""
    return BatchItem(id, json.dumps(request_of(text).body() | more, ensure_ascii=False))


def items(count: int) -> list[BatchItem]:
    """That many requests, which are called r-1, r-2 …"""
    return [item(f"r-{number}", f"hello {number}") for number in range(1, count + 1)]


async def submit(model: Batches, *asked: BatchItem, call: str = "batch-1") -> BatchStatus:
    return await model.submit_batch(asked, call=call, total=60, answered=lambda _: None)


async def results(model: Batches, id: str) -> list[BatchLine]:
    async with aclosing(model.batch_results(id)) as lines:
        return [line async for line in lines]


async def types(model: Batches, id: str) -> dict[str, str]:
    """What became of each request."""
    return {line.custom_id: line.type for line in await results(model, id)}


class Conversation:
    """A simulator, the SDK's model on it, and what the headers said."""

    def __init__(self, provider: SimulatedProvider, model: AnthropicModel) -> None:
        self.provider, self.model = provider, model
        self.answered: list[ResponseHead] = []

    async def events(self, request: Request) -> list[dict[str, Any]]:
        async with aclosing(self.model.stream(request, self.answered.append)) as events:
            return [event async for event in events]

    async def reply(self, request: Request) -> Reply:
        folding = ReplyFold()
        for event in await self.events(request):
            folding.feed(event)
        return folding.reply()

    async def ended(self) -> dict[str, Any]:
        """The witness's last word on the one call there was, once it is said."""
        while len(self.provider.lines) < 2:  # noqa: ASYNC110  it is said on the other side of a socket
            await asyncio.sleep(0.005)
        return self.provider.lines[1]

    async def failure(self, request: Request | None = None) -> ModelFailure:
        with pytest.raises(ModelFailure) as caught:
            await self.events(request or request_of())
        return caught.value


Converse = Callable[..., Awaitable[Conversation]]


@pytest.fixture
async def converse() -> AsyncIterator[Converse]:
    """Start a simulator with these rules, script, seed …"""
    async with AsyncExitStack() as stack:

        async def start(*rules: Any, key: str = "sk-test", **more: Any) -> Conversation:
            running = await stack.enter_async_context(simulator(rules=rules, **more))
            model = AnthropicModel(key, running.url)
            stack.push_async_callback(model.close)
            return Conversation(running, model)

        yield start
