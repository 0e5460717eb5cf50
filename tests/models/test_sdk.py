"""The simulator speaks the wire format well enough for the SDK's own, typed, high-level calls."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models import Script, call, say, think
from holdfast.models.simulator import provider
from tests.models.conftest import MODEL, WEATHER

TOOLS: Any = {"tools": [WEATHER]}
HELLO: Any = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}


async def test_typed_streams_and_whole_messages_agree() -> None:
    import anthropic

    script = Script(think("hm"), call("weather", city="Oslo"))
    async with provider(script=script) as url, anthropic.AsyncAnthropic(api_key="k", base_url=url) as client:
        whole = await client.messages.create(**HELLO, **TOOLS)
        async with client.messages.stream(**HELLO, **TOOLS) as stream:
            streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "tool_use"]
    assert streamed.to_dict() == whole.to_dict()
    assert whole.stop_reason == "tool_use"
    assert whole.usage.output_tokens > 1


async def test_models_and_counts_are_typed_too() -> None:
    import anthropic

    async with provider() as url, anthropic.AsyncAnthropic(api_key="k", base_url=url) as client:
        listed = {model.id: model async for model in client.models.list()}
        count = await client.messages.count_tokens(model=MODEL, messages=HELLO["messages"])
    assert (listed[MODEL].max_input_tokens, listed[MODEL].max_tokens) == (1_000_000, 128_000)
    assert count.input_tokens > 5


async def test_errors_are_the_sdks_own() -> None:
    import anthropic

    rules = [{"match": {"nth": 1}, "do": {"status": 429, "code": "enforced_spend_limit_reached"}}]
    async with (
        provider(rules=rules, script=Script(say("x"))) as url,
        anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client,
    ):
        with pytest.raises(anthropic.RateLimitError) as limited:
            await client.messages.create(**HELLO)
        with pytest.raises(anthropic.BadRequestError, match="must be non-empty"):
            await client.messages.create(
                **(HELLO | {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]})
            )
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**(HELLO | {"model": "claude-nobody-1"}))
    assert limited.value.error_code == "enforced_spend_limit_reached"
    assert limited.value.request_id is not None
