"""Agents whose models are another provider's, registered under a prefix."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.app import core_of
from holdfast.models import Request, ResponseHead, Script, ScriptedModel, say
from holdfast.models.chat_completions import OpenAICompatible
from holdfast.models.protocol import Wire
from tests.models.test_chat_completions import calling, chat_server, saying
from tests.support.apps import eventually


async def test_an_agent_of_another_provider_calls_its_tool_and_answers(hf: Holdfast) -> None:
    @hf.tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word}: a small animal"

    async with chat_server(calling("look_up", '{"word": "cat"}'), saying("It is ", "small.")) as server:
        hf.provider("mine", OpenAICompatible(key_env=None, base_url=server.url))
        agent = hf.agent("reader", model="mine:small", tools=[look_up])
        result = await agent.run("What is a cat?", key="once")
        assert (await agent.run("What is a cat?", key="once")).text == result.text == "It is small."
    assert len(server.asked) == 2, "a recorded answer is not bought again"
    assert server.asked[1]["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "call_1",
        "content": "cat: a small animal",
    }
    assert result.usage.output_tokens == 10


async def test_why_names_the_provider_that_no_worker_has(hf: Holdfast) -> None:
    agent = hf.agent("reader", model="mine:small")
    run = await agent.enqueue("Hello")
    await hf.ensure_worker()
    why = str(await run.why())
    assert "mine" in why
    assert "ANTHROPIC_API_KEY" not in why


async def test_a_provider_that_refuses_fails_the_run_with_its_words(hf: Holdfast) -> None:
    said = {"error": {"message": "there is no such picture", "type": "invalid_request_error"}}
    async with chat_server((400, said), (400, said)) as server:
        hf.provider("mine", OpenAICompatible(key_env=None, base_url=server.url))
        with pytest.raises(RunFailed, match="there is no such picture"):
            await hf.agent("reader", model="mine:small").run("Hello")


class Rationed(ScriptedModel):
    """Answers, and says that this was the last call for now."""

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        limits = {"requests-remaining": "0", "requests-reset": "2126-01-01T00:00:00Z"}
        answered(ResponseHead(limits=limits))
        async for event in super().stream(request, lambda _: None):
            yield event


class Small:
    """A provider whose account has one call."""

    def open(self, _model: str) -> Rationed:
        return Rationed(Script(say("The last one.")))

    def lack(self) -> str | None:
        return None

    def credential(self) -> str:
        return "small#1"


async def test_any_provider_closes_its_lane_before_anybody_is_refused(hf: Holdfast) -> None:
    hf.provider("mine", Small())
    assert (await hf.agent("reader", model="mine:small").run("Hello")).text == "The last one."

    async def closed() -> bool:
        return [lane.reason for lane in await hf.lanes.list()] == ["the rate limit is used up"]

    await eventually(closed)


async def test_a_span_names_the_provider_that_is_asked(hf: Holdfast) -> None:
    hf.provider("mine", Small())
    catalog = core_of(hf).book
    assert [catalog.provider(model) for model in ("mine:small", "scripted:", "claude-sonnet-5-5")] == [
        "mine",
        "scripted",
        "anthropic",
    ]
