"""Agents whose models are another provider's, registered under a prefix."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.models.chat_completions import OpenAICompatible
from tests.models.test_chat_completions import calling, chat_server, saying


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
