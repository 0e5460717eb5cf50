"""UA-33 to UA-36: both gateways do the same. The external one is a client of the gateway that the web serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import GatewayUnavailable, SessionBusy, UsageError
from holdfast.events import RunEnded, TurnStarted
from holdfast.facades.universal_agent import protocol
from holdfast.facades.universal_agent.conversation import converse
from holdfast.facades.universal_agent.gateway import (
    AgentEvent,
    EventType,
    ExternalGateway,
    GatewayRequest,
    GatewaySession,
    InProcessGateway,
)
from holdfast.facades.universal_agent.runtime_db import AGENT
from holdfast.http import web
from holdfast.testing import Script, call, refuse, say
from tests.facades.conftest import Doors
from tests.http.conftest import Serve
from tests.support.agents import redeclare
from tests.support.apps import MakeApp, eventually, happens


async def told(doors: Doors, session: GatewaySession, text: str, **metadata: object) -> list[AgentEvent]:
    return [event async for event in doors.gateway.execute(session, GatewayRequest(text, metadata=dict(metadata)))]


async def turns_of(app: Holdfast, session: GatewaySession) -> int:
    return (await app.sessions.get(session.session_id)).runs


async def test_ua_33_both_gateways_make_sessions_run_turns_and_list_them(doors: Doors, tmp_path: Path) -> None:
    session = await doors.gateway.create_session("ann", str(tmp_path / "project"))
    assert (session.session_id, session.user_id) == ("project", "ann")
    seen: list[EventType] = []

    async def hear(event: AgentEvent) -> None:
        seen.append(event.type)

    result = await doors.gateway.run_query(session, GatewayRequest(user_input="Hello there"), hear)
    assert result.success
    assert "Hello there" in result.response_text
    assert (result.tool_calls, result.metadata["outcome"], result.metadata["errors"]) == (0, "answered", [])
    assert seen[0] is EventType.SESSION_INFO
    assert seen[-1] is EventType.ITERATION_END
    assert EventType.TEXT in seen
    again = await doors.gateway.resume_session("project")
    assert (again.user_id, again.workspace_dir) == ("ann", str(tmp_path / "project"))
    assert [(each.session_id, each.status) for each in await doors.gateway.list_sessions_async()] == [
        ("project", "active")
    ]
    await doors.gateway.close_session("project")
    assert [each.status for each in await doors.gateway.list_sessions_async()] == ["closed"]


async def test_a_workspace_has_a_manifest_and_a_log(doors: Doors, tmp_path: Path) -> None:
    session = await doors.gateway.create_session("ann")
    assert session.session_id.startswith("session_20")
    folder = Path(session.workspace_dir)
    assert folder == tmp_path / "workspaces" / session.session_id
    await doors.gateway.run_query(session, GatewayRequest("Hello"))
    manifest = json.loads((folder / "run_manifest.json").read_text())
    assert (manifest["session_id"], manifest["user_id"]) == (session.session_id, "ann")
    lines = [json.loads(line) for line in (folder / "activity.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines if line["event"] != "session_opened"]
    assert events == ["turn_started", "turn_ended"]
    assert (folder / "work_products").is_dir()


@pytest.mark.parametrize("folder", ["my project", ".hidden", "проект", "-x", "..."])
async def test_a_workspace_of_any_name_has_a_session_of_its_own(doors: Doors, tmp_path: Path, folder: str) -> None:
    """Explicit paths are taken as they are; the session gets a name that may be one."""
    session = await doors.gateway.create_session("ann", str(tmp_path / folder))
    assert session.workspace_dir == str(tmp_path / folder)
    again = await doors.gateway.create_session("ann", str(tmp_path / folder))
    assert again.session_id == session.session_id
    other = await doors.gateway.create_session("ann", str(tmp_path / "other" / folder))
    assert other.session_id != session.session_id


async def test_the_lists_of_callers_that_cannot_await(doors: Doors) -> None:
    await doors.gateway.create_session("ann", session_id="one")
    assert isinstance(doors.gateway, InProcessGateway | ExternalGateway)
    found = await asyncio.to_thread(doors.gateway.list_sessions)
    assert [each.session_id for each in found] == ["one"]


async def test_ua_34_turns_of_a_session_never_overlap_and_sessions_do(doors: Doors) -> None:
    """While a session has a turn, another one is refused; it comes after the first."""
    one, two = [await doors.gateway.create_session("ann", session_id=name) for name in ("one", "two")]
    begun, both = asyncio.Event(), asyncio.Event()
    inside: list[str] = []

    @doors.app.tool
    async def meet(name: str) -> str:
        """Wait for another session."""
        inside.append(name)
        begun.set()
        if {"one", "two"} <= set(inside):
            both.set()
        await happens(both)
        return name

    doors.app.script("meeting", Script(lambda messages: call("meet", name=_said(messages)), say("met")))
    redeclare(doors.app, AGENT, model="scripted:meeting", tools=[meet])
    first = asyncio.create_task(doors.gateway.run_query(one, GatewayRequest("one")))
    await happens(begun)
    with pytest.raises(SessionBusy):
        await doors.gateway.run_query(one, GatewayRequest("one"))
    results = [await doors.gateway.run_query(two, GatewayRequest("two")), await first]
    results.append(await doors.gateway.run_query(one, GatewayRequest("one")))
    assert [result.success for result in results] == [True, True, True]
    assert inside == ["one", "two", "one"]
    runs = [run.id for run in await doors.app.sessions["one"].runs()]
    spans = [await _span(doors.app, run) for run in runs]
    (_, first_end), (second_begin, _) = sorted(spans)
    assert first_end <= second_begin


def _said(messages: list[dict[str, object]]) -> str:
    content = messages[0]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])  # type: ignore[index]


async def _span(app: Holdfast, run: str) -> tuple[datetime, datetime]:
    events = await app.runs[run].events()
    begin = [event.at for event in events if isinstance(event, TurnStarted)]
    return begin[0], next(event.at for event in events if isinstance(event, RunEnded))


async def test_ua_34_a_turn_that_is_asked_for_again_runs_once(doors: Doors) -> None:
    session = await doors.gateway.create_session("ann", session_id="one")
    first, second = await asyncio.gather(
        told(doors, session, "Hello", client_turn_id="t1"), told(doors, session, "Hello", client_turn_id="t1")
    )
    third = await told(doors, session, "Hello", client_turn_id="t1")
    assert [event.data.get("run_id") for event in first[:1]] == [event.data.get("run_id") for event in third[:1]]
    assert first[-1] == second[-1] == third[-1]
    admitted = sorted([first[1].data["status"], second[1].data["status"]])
    assert admitted[0] == "accepted"
    assert admitted[1] in ("duplicate_in_progress", "duplicate_completed")
    assert third[1].data["status"] == "duplicate_completed"
    assert await turns_of(doors.app, session) == 1
    await told(doors, session, "Hello", client_turn_id="t2")
    assert await turns_of(doors.app, session) == 2


async def test_an_error_event_is_a_failure_and_ends_the_turn(doors: Doors) -> None:
    doors.app.script("declining", Script(refuse("no")))
    redeclare(doors.app, AGENT, model="scripted:declining")
    session = await doors.gateway.create_session("ann", session_id="one")
    result = await doors.gateway.run_query(session, GatewayRequest("Hello"))
    assert not result.success
    assert "refused" in result.metadata["errors"][0]


async def test_a_limit_of_the_request_is_that_of_its_run(doors: Doors) -> None:
    @doors.app.tool
    def again() -> str:
        """Once more."""
        return "again"

    doors.app.script("endless", Script(*[call("again")] * 10, say("done")))
    redeclare(doors.app, AGENT, model="scripted:endless", tools=[again])
    session = await doors.gateway.create_session("ann", session_id="one")
    result = await doors.gateway.run_query(session, GatewayRequest("Hello", metadata={"max_turns": 3}))
    assert not result.success
    assert "limited" in result.metadata["errors"][0]
    assert (result.tool_calls, result.metadata["code"], result.metadata["turns"]) == (3, "limited", 3)
    assert result.trace_id is not None


async def test_a_person_answers_through_the_gateway(doors: Doors) -> None:
    question = doors.app.inquiries.question()
    doors.app.script("asking", Script(call("ask_person", question="Which colour?"), say("Thanks.")))
    redeclare(doors.app, AGENT, model="scripted:asking", tools=[question])
    session = await doors.gateway.create_session("ann", session_id="one")
    answers: list[bool] = []

    async def answer(event: AgentEvent) -> None:
        if event.type is EventType.INPUT_REQUIRED:
            assert "Which colour?" in event.data["question"]
            answers.append(await doors.gateway.resolve_input("one", "no-such-input", "red"))
            answers.append(await doors.gateway.resolve_input("one", event.data["input_id"], "red"))

    result = await doors.gateway.run_query(session, GatewayRequest("Paint it"), answer)
    assert (result.success, result.response_text, answers) == (True, "Thanks.", [False, True])


async def test_a_turn_can_be_cancelled(doors: Doors) -> None:
    begun = asyncio.Event()

    @doors.app.tool
    async def forever() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    doors.app.script("waiting", Script(call("forever"), say("never")))
    redeclare(doors.app, AGENT, model="scripted:waiting", tools=[forever])
    session = await doors.gateway.create_session("ann", session_id="one")
    turn = asyncio.create_task(doors.gateway.run_query(session, GatewayRequest("Hello")))
    await happens(begun)
    assert isinstance(doors.gateway, InProcessGateway | ExternalGateway)
    assert await doors.gateway.cancel("one") == 1
    assert not (await turn).success


async def test_ua_36_a_session_that_is_not_there_is_never_made_by_resuming_it(doors: Doors) -> None:
    for unknown in ("nobody", "../etc", "a/b", "0197c1b8-0000-7000-8000-000000000000"):
        with pytest.raises(ValueError, match="Unknown session_id"):
            await doors.gateway.resume_session(unknown)
    with pytest.raises(ValueError, match="Unknown session_id"):
        await doors.gateway.run_query(GatewaySession("nobody", "ann", "/tmp"), GatewayRequest("Hello"))
    assert await doors.gateway.list_sessions_async() == []


async def test_sessions_of_others_and_of_other_workspaces_stay_apart(doors: Doors, tmp_path: Path) -> None:
    first = await doors.gateway.create_session("ann", str(tmp_path / "a" / "project"))
    assert await doors.gateway.create_session("ann", str(tmp_path / "a" / "project")) == first
    second = await doors.gateway.create_session("ann", str(tmp_path / "b" / "project"))
    third = await doors.gateway.create_session("bob", str(tmp_path / "a" / "project"))
    assert len({first.session_id, second.session_id, third.session_id}) == 3
    assert (await doors.gateway.create_session("bob", str(tmp_path / "a" / "project"))).session_id == third.session_id
    with pytest.raises(UsageError, match="another user or workspace"):
        await doors.gateway.create_session("bob", str(tmp_path / "a" / "project"), first.session_id)


@pytest.mark.parametrize("workspace", ["../outside", "a/../../outside", ".", "nul\0"])
async def test_a_relative_workspace_does_not_leave_its_base(doors: Doors, workspace: str) -> None:
    with pytest.raises(UsageError):
        await doors.gateway.create_session("ann", workspace)


@pytest.mark.parametrize("session_id", ["a/b", "", "..", "x" * 10_000])
async def test_a_bad_id_makes_no_session(doors: Doors, session_id: str) -> None:
    if session_id:
        with pytest.raises(UsageError):
            await doors.gateway.create_session("ann", None, session_id)
    assert await doors.gateway.list_sessions_async() == []


async def test_ua_35_a_stream_that_is_cut_off_raises_and_the_turn_can_be_asked_for_again(
    doors: Doors, make_app: MakeApp
) -> None:
    if doors.served is None:  # nothing lies between: an app that is closed raises too
        other = InProcessGateway(make_app())
        with pytest.raises(ValueError, match="Unknown session_id"):
            await other.run_query(GatewaySession("one", "ann", "/tmp"), GatewayRequest("Hello"))
        return
    session = await doors.gateway.create_session("ann", session_id="one")
    doors.served.leave_after = 3
    with pytest.raises(GatewayUnavailable, match="before the turn had ended"):
        await told(doors, session, "Hello", client_turn_id="t1")
    doors.served.leave_after = None
    events = await told(doors, session, "Hello", client_turn_id="t1")
    assert events[-1].type is EventType.ITERATION_END
    assert await turns_of(doors.app, session) == 1


async def test_ua_35_a_gateway_that_is_not_there_or_wants_a_token(answering: Holdfast, serve: Serve) -> None:
    gone = ExternalGateway("http://127.0.0.1:9")
    with pytest.raises(GatewayUnavailable):
        await gone.create_session("ann")
    with pytest.raises(GatewayUnavailable):
        await gone.run_query(GatewaySession("one", "ann", ""), GatewayRequest("Hello"))
    with pytest.raises(GatewayUnavailable):
        gone.list_sessions()
    port = await serve(web(answering, gateway=AGENT))
    wrong = ExternalGateway(f"http://127.0.0.1:{port}/gateway", token="guess")
    with pytest.raises(UsageError, match="token"):
        await wrong.create_session("ann")
    with pytest.raises(UsageError, match="token"):
        await wrong.run_query(GatewaySession("one", "ann", ""), GatewayRequest("Hello"))
    with pytest.raises(UsageError, match="http"):
        ExternalGateway("localhost:8002")


async def test_a_prompt_that_no_message_can_carry_is_refused_by_both(doors: Doors) -> None:
    session = await doors.gateway.create_session("ann", session_id="one")
    with pytest.raises(UsageError, match="a message has at most"):
        await doors.gateway.run_query(session, GatewayRequest("x" * (protocol.LARGEST + 1)))
    with pytest.raises(UsageError, match="a message has at most"):
        await doors.gateway.run_query(session, GatewayRequest("x", metadata={"more": "y" * protocol.LARGEST}))
    assert await turns_of(doors.app, session) == 0
    assert await doors.gateway.resolve_input("one", "", "yes") is False


async def test_a_client_does_not_wait_for_what_its_gateway_refused(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of another release, say, which the server does not understand."""
    session = await doors.gateway.create_session("ann", session_id="one")
    if doors.served is None:
        assert (await doors.gateway.run_query(session, GatewayRequest("Hello"))).success
        return
    monkeypatch.setattr(protocol, "execute", lambda _: protocol.message("execute", {"prompt": "Hello"}))
    result = await doors.gateway.run_query(session, GatewayRequest("Hello"))
    assert result.metadata["errors"] == ["execute needs user_input, a text."]
    monkeypatch.setattr(protocol, "execute", lambda _: protocol.message("dance"))
    with pytest.raises(UsageError, match="did not understand us: messages are execute"):
        await doors.gateway.run_query(session, GatewayRequest("Hello"))


class Talk:
    """A channel without a network: what a client says, and what it hears."""

    def __init__(self, *said: str) -> None:
        self.heard: list[protocol.ServerMessage] = []
        self.closed: int | None = None
        self._said = list(said)
        self._told = asyncio.Event()

    async def accept(self) -> None: ...

    async def receive(self) -> str | None:
        if self._said:
            return self._said.pop(0)
        await happens(self._told)
        return None

    async def send(self, text: str) -> None:
        self.heard.append(protocol.read_server(text))
        if self.heard[-1].type in (protocol.QUERY_COMPLETE, protocol.PONG):
            self._told.set()

    async def close(self, code: int, reason: str) -> None:
        self.closed = code


async def test_one_connection_has_one_turn_at_a_time(answering: Holdfast, tmp_path: Path) -> None:
    gateway = InProcessGateway(answering, workspace_base=tmp_path)
    await gateway.create_session("ann", session_id="one")
    first = GatewayRequest("Hello", metadata={"client_turn_id": "t1"})
    talk = Talk(
        "not json",
        json.dumps({"type": "dance"}),
        protocol.execute(first),
        protocol.execute(first),
        protocol.execute(GatewayRequest("Other", metadata={"client_turn_id": "t2"})),
    )
    await converse(gateway, "one", talk, SystemClock())
    statuses = [each.data.get("status") for each in talk.heard if each.type == "status"]
    assert statuses[:4] == ["bad_message", "bad_message", "duplicate_in_progress", "busy"]
    assert talk.heard[0].type == protocol.CONNECTED
    assert talk.heard[-1].type == protocol.QUERY_COMPLETE
    assert (await answering.sessions.get("one")).runs == 1
    for bad, code in (("a/b", 4000), ("nobody", 4004)):
        refused = Talk()
        await converse(gateway, bad, refused, SystemClock())
        assert refused.closed == code
    mute = Talk(json.dumps({"type": "execute", "data": {"text": 3}}))
    await converse(gateway, "one", mute, SystemClock())
    assert [each.type for each in mute.heard] == [protocol.CONNECTED, protocol.ERROR, protocol.QUERY_COMPLETE]
    pinged = Talk(json.dumps({"type": "ping"}))
    await converse(gateway, "one", pinged, SystemClock())
    assert pinged.heard[-1].type == protocol.PONG


class MovedClock(SystemClock):
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sleeping: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleeping.append((self.now + seconds, woken))
        await woken

    async def move(self, to: float) -> None:
        """Wake whoever sleeps until then at the latest, in order, and let each do what it does."""
        while due := [each for each in self.sleeping if each[0] <= to]:
            next_one = min(due, key=lambda each: each[0])
            self.sleeping.remove(next_one)
            self.now = next_one[0]
            if not next_one[1].done():
                next_one[1].set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self.now = to


class SlowGateway:
    """One session, whose turn says a word whenever it is told to."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str] = asyncio.Queue()

    async def resume_session(self, session_id: str) -> GatewaySession:
        return GatewaySession(session_id, "ann", "/nowhere", {})

    async def execute(
        self, session: GatewaySession, request: GatewayRequest, *, repeated_within: timedelta | None = None
    ) -> AsyncIterator[AgentEvent]:
        while word := await self.words.get():
            yield AgentEvent(EventType.TEXT, {"text": word})

    async def cancel(self, session_id: str) -> int:
        return 0

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool:
        return False


class TimedTalk(Talk):
    """It notes when it hears what."""

    def __init__(self, clock: MovedClock, *said: str) -> None:
        super().__init__(*said)
        self.clock = clock
        self.times: list[tuple[float, str]] = []

    async def send(self, text: str) -> None:
        await super().send(text)
        self.times.append((self.clock.now, self.heard[-1].type))


async def test_a_turn_is_never_quiet_for_longer_than_its_heartbeat() -> None:
    clock, gateway = MovedClock(), SlowGateway()
    talk = TimedTalk(clock, protocol.execute(GatewayRequest("Hello", metadata={"client_turn_id": "t1"})))
    talking = asyncio.create_task(converse(gateway, "one", talk, clock))

    async def sleeps() -> bool:
        return bool(clock.sleeping)

    async def heard() -> bool:
        return talk.times[-1] == (clock.now, "text")

    await eventually(sleeps)
    for moment in (10, 32):
        await clock.move(moment)
        gateway.words.put_nowait("so")
        await eventually(heard)
    await clock.move(48)
    gateway.words.put_nowait("")
    await talking
    assert talk.times[1:] == [(10, "text"), (25, "heartbeat"), (32, "text"), (47, "heartbeat"), (48, "query_complete")]


async def test_a_turn_continues_when_its_reader_leaves(answering: Holdfast, tmp_path: Path) -> None:
    gateway = InProcessGateway(answering, workspace_base=tmp_path)
    session = await gateway.create_session("ann", session_id="one")
    events = gateway.execute(session, GatewayRequest("Hello"))
    first = await anext(events)
    await events.aclose()  # type: ignore[attr-defined]

    async def ended() -> bool:
        return (await answering.runs.get(first.data["run_id"])).state == "completed"

    await eventually(ended)
