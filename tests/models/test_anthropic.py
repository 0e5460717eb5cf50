"""The official SDK against the simulator: what arrives, what is sent, and how it ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from holdfast.models import Script, calls, refuse, say, think, truncate
from holdfast.models.script import call
from tests.models.conftest import WEATHER, Converse, request_of
from tests.support.commands import python

IDLE = 0.2  # seconds; where nothing comes, however long that is, the limit ends it


async def test_raw_events_arrive_with_their_pings(converse: Converse) -> None:
    talk = await converse()
    events = await talk.events(request_of("hello world"))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_delta") > 1


async def test_headers_are_told_before_the_first_event(converse: Converse) -> None:
    talk = await converse()
    async with aclosing(talk.model.stream(request_of(), talk.answered.append)) as events:
        await anext(aiter(events))
        (answered,) = talk.answered
    assert answered.status == 200
    assert answered.request_id == talk.provider.lines[0]["request_id"]
    assert answered.organization == "org_simulated"
    assert answered.limits["requests-remaining"] == "3999"
    assert set(answered.limits) >= {"input-tokens-limit", "output-tokens-reset"}


async def test_a_call_is_named_to_the_witness(converse: Converse) -> None:
    talk = await converse()
    await talk.reply(request_of(call="run-1/2/3"))
    assert [line["call"] for line in talk.provider.lines] == ["run-1/2/3"] * 2


async def test_a_connection_serves_many_calls(converse: Converse) -> None:
    talk = await converse()
    await asyncio.gather(*(talk.reply(request_of(f"hello {n}")) for n in range(20)))
    assert talk.provider.state.stats["status 200"] == 20


async def test_tools_are_called_and_answered(converse: Converse) -> None:
    talk = await converse()
    asked = await talk.reply(request_of("Oslo", tools=[WEATHER]))
    (use,) = asked.tool_uses
    assert (use["name"], use["input"], asked.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "sunny"}
    answer = await talk.reply(request_of("Oslo", asked.blocks, [result], tools=[WEATHER]))
    assert (answer.text, answer.stop_reason) == ("sunny", "end_turn")


async def test_structured_output_follows_its_schema(converse: Converse) -> None:
    schema = {
        "type": "object",
        "properties": {"number": {"type": "string"}, "total": {"type": "number"}},
        "required": ["number", "total"],
        "additionalProperties": False,
    }
    talk = await converse()
    reply = await talk.reply(request_of("A1", output_schema=schema, options={"effort": "low"}))
    assert reply.text == '{"number": "A1", "total": 1}'


async def test_options_and_betas_are_passed_through() -> None:
    request = request_of(
        options={"thinking": {"type": "adaptive"}, "effort": "high", "metadata": {"user_id": "u"}},
        output_schema={"type": "object"},
        system=[{"type": "text", "text": "s"}],
    )
    assert request.body() == {
        "model": request.model,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "hello"}],
        "system": [{"type": "text", "text": "s"}],
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    }


async def test_tokens_are_counted(converse: Converse) -> None:
    talk = await converse()
    few, many = [await talk.model.count_tokens(request_of("x" * n, max_tokens=5)) for n in (4, 4000)]
    assert many - few == 999
    failure = await talk.failure(request_of(model="claude-nobody-1"))
    assert failure.kind == "not_found"


@pytest.mark.parametrize(
    ("step", "stop", "details"),
    [
        (truncate("half"), "max_tokens", None),
        (refuse("cyber"), "refusal", {"type": "refusal", "category": "cyber", "explanation": None}),
    ],
)
async def test_other_ends_are_replies_too(converse: Converse, step: Any, stop: str, details: Any) -> None:
    talk = await converse(script=Script(step))
    reply = await talk.reply(request_of())
    assert (reply.stop_reason, reply.stop_details) == (stop, details)


async def test_what_nobody_knows_yet_does_no_harm(converse: Converse) -> None:
    talk = await converse({"do": {"unknown_event": {"after": 2}, "unknown_block": True}})
    events = await talk.events(request_of())
    assert "weather_report" in [event["type"] for event in events]
    reply = await talk.reply(request_of())
    assert [block["type"] for block in reply.blocks] == ["text", "hologram"]
    assert reply.blocks[1] == {"type": "hologram", "data": "abc", "angles": [1]}


async def test_broken_arguments_and_repeated_ids_are_told_apart(converse: Converse) -> None:
    script = Script(calls(call("weather", city="Oslo"), call("weather", city="Rome")))
    talk = await converse({"match": {"nth": 1}, "do": {"truncated_input": True}}, script=script)
    broken = await talk.reply(request_of(tools=[WEATHER]))
    assert [block["input"] for block in broken.blocks] == [{}, {}]
    assert len(broken.bad_inputs) == 2
    whole = await talk.reply(request_of(tools=[WEATHER]))
    assert (len(whole.tool_uses), whole.bad_inputs, whole.duplicates) == (2, {}, ())

    again = await converse({"do": {"duplicate_ids": True}}, script=script)
    assert (await again.reply(request_of(tools=[WEATHER]))).duplicates == ("toolu_again",)


@pytest.mark.parametrize(
    "do", [{"stall": {"after": 3}}, {"slow_headers": None}, {"drip": {"bytes": 1, "seconds": 3600}}]
)
async def test_silence_ends_a_call(converse: Converse, do: dict[str, Any]) -> None:
    talk = await converse({"do": do})
    failure = await talk.failure(request_of(idle=IDLE))
    assert (failure.kind, failure.bought) == ("timeout", "unknown")
    assert "nothing arrived" in str(failure)


async def test_pings_are_no_answer_in_the_end(converse: Converse) -> None:
    talk = await converse({"do": {"pings": {"after": 2, "count": 10**9, "seconds": 0.01}}})
    failure = await talk.failure(request_of(idle=60, total=0.3))
    assert "took longer than" in str(failure)


async def test_pings_do_not_disturb_an_answer(converse: Converse) -> None:
    talk = await converse({"do": {"pings": {"after": 4, "count": 50}}})
    assert (await talk.reply(request_of())).text == "hello"


async def test_closing_the_iterator_closes_the_call(converse: Converse) -> None:
    talk = await converse({"do": {"stall": {"after": 3}}})
    async with aclosing(talk.model.stream(request_of(), talk.answered.append)) as events:
        await anext(aiter(events))
    assert (await talk.ended())["ended"] == "gone"


async def test_cancelling_the_task_closes_the_call(converse: Converse) -> None:
    talk = await converse({"do": {"stall": {"after": 3}}})
    headers = asyncio.Event()

    async def listen() -> None:
        async for _ in talk.model.stream(request_of(), lambda _: headers.set()):
            pass

    task = asyncio.create_task(listen())
    await headers.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await talk.ended())["ended"] == "gone"


async def test_a_slow_provider_is_waited_for(converse: Converse) -> None:
    script = Script(think("let me see"), say("hello"))
    talk = await converse({"do": {"drip": {"bytes": 7, "seconds": 0}}}, script=script)
    assert (await talk.reply(request_of())).text == "hello"


def test_importing_models_does_not_import_the_sdk() -> None:
    code = "import holdfast.models, sys; print(sorted({'anthropic', 'httpx2', 'pydantic', 'apsw'} & set(sys.modules)))"
    assert python("-c", code).out.strip() == "[]"
