"""The provider's bad days: whatever it does, the run ends as documented, and nothing is bought unknowingly.

The official SDK calls the provider simulator over loopback. The lab's clock stands still, so that every wait is the
database's and is over when a test says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Holdfast, RunFailed
from holdfast.agents.lanes import lane_of
from holdfast.agents.tools import ServerTool
from holdfast.app import core_of
from holdfast.events import TurnFailed
from holdfast.models.script import Script, block, call, ends, refuse, say, think, truncate
from holdfast.models.simulator import SimulatedProvider, simulator
from holdfast.settings import Settings
from holdfast.testing import Labs
from tests.support.agents import MODEL, ByModel, Noting, audit, results, settle, snapshot

pytestmark = pytest.mark.asyncio


def an_app(url: str, **settings: Any) -> Holdfast:
    """Its own database is never opened: labs give it others."""
    return Holdfast("sqlite:////nowhere/at-all.db", settings=Settings(provider_url=url, **settings))


@asynccontextmanager
async def provider(script: Script, *rules: dict[str, Any]) -> AsyncIterator[SimulatedProvider]:
    async with simulator(script=script, rules=rules) as running:
        yield running


def add_of(app: Holdfast) -> Any:
    @app.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    return add


HERE = Script(say("Here I am."))


@dataclass(frozen=True)
class Fault:
    """What the provider does to the first call, and how that attempt is recorded."""

    do: dict[str, Any]
    kind: str
    unknown: int = 1


PASSING = {
    "server error": Fault({"status": 500}, "server"),
    "overloaded": Fault({"overloaded": True}, "overloaded", 0),
    "rate limit without a time": Fault({"status": 429}, "rate_limit", 0),
    "gone before its headers": Fault({"cut": {"headers": True}}, "cut"),
    "cut between events": Fault({"cut": {"events": 3}}, "cut"),
    "cut inside an event": Fault({"cut": {"bytes": 500}}, "cut"),
    "error after 200": Fault({"error_event": {"after": 3}}, "overloaded"),
    "another error after 200": Fault({"error_event": {"after": 3, "type": "api_error"}}, "server"),
    "malformed": Fault({"malformed": {"after": 3}}, "malformed"),
}


async def test_what_passes_is_tried_again_and_ends_as_if_nothing_had_happened(provided: Labs) -> None:
    models = {name: snapshot(number) for number, name in enumerate(PASSING)}
    rules = [{"match": {"model": models[name], "nth": 1}, "do": fault.do} for name, fault in PASSING.items()]
    async with provider(HERE, *rules) as running:
        hf = an_app(running.url, max_concurrent_streaming_runs=20)
        agent = hf.agent("steady", model=MODEL)
        lab = await provided.use(hf)
        runs = {name: await agent.enqueue("Hello?", model=model) for name, model in models.items()}
        await settle(lab, *runs.values())
        for name, run in runs.items():
            assert (await run.result()).text == "Here I am.", name
            first = (await run.turns())[0]
            assert (first.attempts, first.unknown) == (2, PASSING[name].unknown), name
            assert [event.kind for event in await run.events() if isinstance(event, TurnFailed)] == [PASSING[name].kind]
            assert (await hf.jobs.get(run.id)).attempts <= 1, name
        await audit(hf, running)


SILENT: dict[str, dict[str, Any]] = {
    "stalls": {"stall": {"after": 3}},
    "drips": {"drip": {"bytes": 1, "seconds": 0.05}},
    "sends no headers": {"slow_headers": 3_600},
}


async def test_a_provider_that_falls_silent_is_given_up_and_asked_again(provided: Labs) -> None:
    """Bytes that never complete an event are no sign of life. A slow machine may give up more often than once."""
    models = {name: snapshot(number) for number, name in enumerate(SILENT)}
    rules = [{"match": {"model": models[name], "nth": 1}, "do": do} for name, do in SILENT.items()]
    async with provider(HERE, *rules) as running:
        hf = an_app(running.url, model_idle="1s")
        agent = hf.agent("patient", model=MODEL, attempts=50)
        lab = await provided.use(hf)
        runs = {name: await agent.enqueue("Hello?", model=model) for name, model in models.items()}
        await settle(lab, *runs.values())
        for name, run in runs.items():
            assert (await run.result()).text == "Here I am.", name
            (turn,) = await run.turns()
            assert turn.unknown == turn.attempts - 1 >= 1, name
            assert {event.kind for event in await run.events() if isinstance(event, TurnFailed)} == {"timeout"}, name
        await audit(hf, running)


HARMLESS: dict[str, dict[str, Any]] = {
    "slow but alive": {"drip": {"bytes": 64, "seconds": 0.001}},
    "pings": {"pings": {"after": 2, "count": 5}},
    "an unknown event": {"unknown_event": {"after": 2}},
    "an unknown block": {"unknown_block": True},
}


async def test_what_is_odd_and_not_wrong_is_taken_as_it_is(provided: Labs) -> None:
    models = {name: snapshot(number) for number, name in enumerate(HARMLESS)}
    script = ByModel({model: Script(call("add", a=1, b=2), say("Three.")) for model in models.values()})
    rules = [{"match": {"model": models[name]}, "do": do} for name, do in HARMLESS.items()]
    async with provider(script, *rules) as running:
        hf = an_app(running.url)
        agent = hf.agent("calm", model=MODEL, tools=[add_of(hf)])
        lab = await provided.use(hf)
        runs = {name: await agent.enqueue("1 + 2?", model=model) for name, model in models.items()}
        await settle(lab, *runs.values())
        for name, run in runs.items():
            assert (await run.result()).text == "Three.", name
            assert [(turn.attempts, turn.unknown) for turn in await run.turns()] == [(1, 0), (1, 0)], name
        session = (await runs["an unknown block"].refresh()).session
        answer = (await hf.sessions[session].messages())[1]
        assert answer.blocks[-1] == {"type": "hologram", "data": "abc", "angles": [1]}
        await audit(hf, running)


async def test_a_provider_that_cannot_be_reached_costs_nothing(provided: Labs) -> None:
    running = SimulatedProvider(script=Script(say("Back.")))
    await running.start()
    port = int(running.url.rsplit(":", 1)[1])
    hf = an_app(running.url)
    await running.stop()
    lab = await provided.use(hf)
    run = await hf.agent("patient", model=MODEL).enqueue("Hello?")
    await lab.drain()
    (turn,) = await run.turns()
    assert (turn.state, turn.error["kind"], turn.unknown) == ("failed", "connect", 0)
    again = SimulatedProvider(script=Script(say("Back.")))
    await again.start(port=port)
    await settle(lab, run)
    assert (await run.result()).text == "Back."
    await audit(hf, again)
    await again.stop()


async def test_a_provider_that_never_recovers_is_waited_for_in_patience(provided: Labs) -> None:
    async with provider(Script(say("never")), {"do": {"overloaded": True}}) as running:
        hf = an_app(running.url, provider_patience="2m")
        lab = await provided.use(hf)
        run = await hf.agent("stubborn", model=MODEL, attempts=3).enqueue("Hello?")
        (row,) = await settle(lab, run)
        assert (row.state, row.error_type, row.turns) == ("failed", "streaming_error", 0)
        assert "overloaded" in (row.error or "")
        (turn,) = await run.turns()
        assert (turn.state, turn.unknown) == ("failed", 0)
        assert turn.attempts > 3, "what was not bought does not count"
        await audit(hf, running)


async def test_a_rate_limit_closes_the_lane_for_every_worker_and_costs_no_attempt(provided: Labs) -> None:
    rule = {"match": {"nth": 1}, "do": {"status": 429, "retry_after": 40}}
    async with provider(Script(say("At last.")), rule) as running:
        hf = an_app(running.url)
        agent = hf.agent("limited", model=MODEL, attempts=1)
        lab = await provided.use(hf)
        first = await agent.enqueue("One")
        await lab.drain()
        second = await agent.enqueue("Two")
        await lab.drain()  # by another worker
        assert [line["event"] for line in running.lines] == ["sent", "done"]
        await lab.clock.advance("39s")
        await lab.drain()
        assert len(running.lines) == 2
        await lab.clock.advance("6s")  # spread by up to a tenth
        await lab.drain()
        assert [(await run.result()).text for run in (first, second)] == ["At last.", "At last."]
        assert [len(await hf.jobs.attempts(run.id)) for run in (first, second)] == [2, 2]
        assert [(await hf.jobs.get(run.id)).attempts for run in (first, second)] == [1, 1]
        assert [(turn.attempts, turn.unknown) for turn in await first.turns()] == [(2, 0)]
        await audit(hf, running)


@pytest.mark.parametrize(
    "do", [{"status": 401}, {"status": 429, "code": "enforced_spend_limit_reached"}], ids=["auth", "spend limit"]
)
async def test_what_a_person_must_mend_waits_for_a_person(provided: Labs, do: dict[str, Any]) -> None:
    async with provider(Script(say("Thank you.")), {"do": do}) as running:
        hf = an_app(running.url)
        agent = hf.agent("locked", model=MODEL, attempts=1)
        lab = await provided.use(hf)
        runs = [await agent.enqueue("One"), await agent.enqueue("Two")]
        for _ in range(5):
            await lab.drain()
            await lab.clock.advance("5m")
        assert {(await run.refresh()).state for run in runs} == {"pending"}
        assert running.state.stats["sent"] <= len(runs)  # those that were asked before the first answer
        running.state.rules.clear()
        (lane,) = await hf.lanes.list()
        assert (lane.name, lane.person) == (lane_of(core_of(hf).book.credential(MODEL), MODEL), 1)
        await hf.lanes.open(lane.name)
        await settle(lab, *runs)
        assert [(await run.result()).text for run in runs] == ["Thank you.", "Thank you."]
        await audit(hf, running)


async def test_what_one_agent_may_not_do_closes_the_lane_for_nobody(provided: Labs) -> None:
    """The provider refuses one feature of one request: the others of that model go on."""
    words = "refused by rule: this workspace has no access to code execution"
    async with provider(
        Script(say("Gladly.")), {"match": {"nth": 1}, "do": {"status": 403, "message": words}}
    ) as running:
        hf = an_app(running.url)
        agent = hf.agent("some", model=MODEL, attempts=1)
        lab = await provided.use(hf)
        run = await agent.enqueue("One")
        (row,) = await settle(lab, run)
        assert (row.state, row.error_type) == ("failed", "account_refused")
        assert words in (row.error or "")
        assert await hf.lanes.list() == []
        other = await agent.enqueue("Two")
        await lab.drain()
        assert (await other.result()).text == "Gladly."


async def test_a_bad_request_fails_once(provided: Labs) -> None:
    async with provider(Script(say("never")), {"do": {"status": 400, "message": "refused by rule: no"}}) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        run = await hf.agent("wrong", model=MODEL).enqueue("Hello?")
        (row,) = await settle(lab, run)
        assert (row.state, row.error_type) == ("failed", "streaming_error")
        assert running.state.stats["sent"] == 1
        with pytest.raises(RunFailed, match="refused by rule: no") as caught:
            await run.result()
        assert (caught.value.job, caught.value.type) == (run.id, "streaming_error")
        await audit(hf, running)


async def test_a_prompt_that_is_too_long_says_so(provided: Labs) -> None:
    rule = {"do": {"status": 400, "message": "refused by rule: prompt is too long: 3 tokens > 2 maximum"}}
    async with provider(Script(say("never")), rule) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        (row,) = await settle(lab, await hf.agent("long", model=MODEL).enqueue("Hello?"))
        assert (row.state, row.error_type) == ("failed", "context_window")


async def test_truncated_arguments_get_an_error_result(provided: Labs) -> None:
    script = Script(call("add", a=1, b=2), call("add", a=1, b=2), say("Three."))
    async with provider(script, {"match": {"nth": 1}, "do": {"truncated_input": True}}) as running:
        hf = an_app(running.url)
        lab = await provided.use(hf)
        run = await hf.agent("clipped", model=MODEL, tools=[add_of(hf)]).enqueue("1 + 2?")
        await settle(lab, run)
        assert (await run.result()).text == "Three."
        first, second = await results(hf, run.session_id)
        assert first["is_error"]
        assert "not valid JSON" in first["content"]
        assert second["content"] == "3"
        await audit(hf, running)


async def test_every_stop_reason_ends_as_documented_and_leaves_a_session_that_goes_on(provided: Labs) -> None:
    half = block("thinking", thinking="I was thinking of", signature="")
    scripts = {
        "refused": Script(call("add", a=1, b=2), refuse("cyber")),
        "truncated": Script(truncate("Once upon a")),
        "truncated in a call": Script(ends("max_tokens", say("I will add"), call("add", a=1, b=2))),
        "truncated in a thought": Script(ends("max_tokens", half)),
        "window": Script(ends("model_context_window_exceeded", say("Too much"))),
        "stop sequence": Script(ends("stop_sequence", say("Until here"))),
        "said nothing": Script(call("add", a=1, b=2), ends("end_turn")),
        "blank": Script(ends("tool_use", say("\n\n"), call("add", a=1, b=2)), say(" ")),
        "ended with a call": Script(ends("end_turn", say("Adding."), call("add", a=1, b=2)), say("Three.")),
        "unknown": Script(ends("galactic_alignment", say("Hm."))),
        "unknown in a call": Script(ends("galactic_alignment", call("add", a=1, b=2))),
        "no call named": Script(ends("tool_use", say("Hm."))),
    }
    models = {name: snapshot(number) for number, name in enumerate(scripts)}
    rules = [{"match": {"model": models["truncated in a call"]}, "do": {"truncated_input": True}}]
    async with provider(ByModel({models[name]: script for name, script in scripts.items()}), *rules) as running:
        hf = an_app(running.url, max_concurrent_streaming_runs=20)
        agent = hf.agent("stopping", model=MODEL, tools=[add_of(hf)])
        lab = await provided.use(hf)
        runs = {name: await agent.enqueue("Go", model=model, session=name) for name, model in models.items()}
        await settle(lab, *runs.values())
        rows = {name: await run.refresh() for name, run in runs.items()}
        assert {name: (row.state, row.outcome, row.limited) for name, row in rows.items()} == {
            "refused": ("completed", "refused", None),
            "truncated": ("completed", "truncated", "max_tokens"),
            "truncated in a call": ("completed", "truncated", "max_tokens"),
            "truncated in a thought": ("completed", "truncated", "max_tokens"),
            "window": ("completed", "truncated", "model_context_window_exceeded"),
            "stop sequence": ("completed", "answered", None),
            "said nothing": ("completed", "answered", None),
            "blank": ("completed", "answered", None),
            "ended with a call": ("completed", "answered", None),
            "unknown": ("failed", None, None),
            "unknown in a call": ("failed", None, None),
            "no call named": ("failed", None, None),
        }
        assert "galactic_alignment" in (rows["unknown"].error or "")
        refused = await runs["refused"].result()
        assert refused.refusal is not None
        assert refused.refusal.category == "cyber"
        assert (await runs["ended with a call"].result()).text == "Three."
        running.state.rules.clear()
        running.state.script = Script(say("We go on."))
        after = {name: await agent.enqueue("And now?", model=model, session=name) for name, model in models.items()}
        await settle(lab, *after.values())
        assert {name: (await run.refresh()).error for name, run in after.items()} == dict.fromkeys(after)
        assert {(await run.result()).text for run in after.values()} == {"We go on."}
        await audit(hf, running)


async def test_a_refused_exchange_is_kept_and_never_sent_again(provided: Labs) -> None:
    script = Noting(refuse("bio"))
    async with provider(script) as running:
        hf = an_app(running.url)
        agent = hf.agent("careful", model=MODEL)
        lab = await provided.use(hf)
        await settle(lab, await agent.enqueue("Something bad", session="s"))
        running.state.script = after = Noting(say("Gladly."))
        await settle(lab, await agent.enqueue("Something good", session="s"))
        assert [message["content"][0]["text"] for message in after.bodies[0]["messages"]] == ["Something good"]
        session = await hf.sessions.get("s")
        kept = await hf.sessions[session.id].messages()
        assert (kept[0].text, kept[0].live) == ("Something bad", False)
        await audit(hf, running)


async def test_a_paused_turn_is_sent_back_unchanged(provided: Labs) -> None:
    searching = block("server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "tides"}, caller="x")
    script = Noting(ends("pause_turn", say("Let me see."), searching), say("High at noon."))
    async with provider(script) as running:
        hf = an_app(running.url)
        agent = hf.agent("searcher", model=MODEL, tools=[ServerTool("web_search_20260318", max_uses=3)])
        lab = await provided.use(hf)
        run = await agent.enqueue("When is high tide?")
        await settle(lab, run)
        result = await run.result()
        assert (result.text, result.turns) == ("High at noon.", 2)
        assert script.bodies[1]["messages"][1]["content"][-1]["type"] == "server_tool_use"
        assert script.bodies[1]["messages"][1]["content"][-1]["caller"] == "x"
        assert script.bodies[0]["tools"] == [
            {"type": "web_search_20260318", "name": "web_search", "max_uses": 3, "cache_control": {"type": "ephemeral"}}
        ]
        running.state.script = Script(say("Low at six."))
        again = await agent.enqueue("And low?", session=hf.sessions[result.session_id])
        await settle(lab, again)
        assert (await again.result()).text == "Low at six."
        await audit(hf, running)


async def test_text_that_no_database_can_hold_is_stored_readably(provided: Labs) -> None:
    script = Script(ends("tool_use", say("A\x00B"), call("echo", text="a\x00b")), say("Fine\x00."))
    async with provider(script) as running:
        hf = an_app(running.url)
        heard: list[str] = []

        @hf.tool
        def echo(text: str) -> str:
            """Echo."""
            heard.append(text)
            return text

        lab = await provided.use(hf)
        run = await hf.agent("garbled", model=MODEL, tools=[echo]).enqueue("Go")
        await settle(lab, run)
        assert (await run.result()).text == "Fine\ufffd."
        assert heard == ["a\ufffdb"]
        assert [turn.attempts for turn in await run.turns()] == [1, 1]
        await audit(hf, running)


async def test_thinking_survives_failures_and_other_workers(provided: Labs) -> None:
    script = Script(think("First."), call("add", a=1, b=2), think("Second."), call("add", a=3, b=4), say("Done."))
    rules = [{"match": {"nth": 2}, "do": {"cut": {"events": 4}}}, {"match": {"nth": 4}, "do": {"overloaded": True}}]
    async with provider(script, *rules) as running:
        hf = an_app(running.url)
        agent = hf.agent("thinker", model=MODEL, tools=[add_of(hf)], options={"thinking": {"type": "adaptive"}})
        lab = await provided.use(hf)
        run = await agent.enqueue("Think")
        lab.crash(before="commit")
        await settle(lab, run)
        assert (await run.result()).text == "Done."
        assert sum(turn.unknown for turn in await run.turns()) >= 1
        await audit(hf, running)
