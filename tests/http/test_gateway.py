"""The gateway that the web serves: who may speak in a session, how turns are admitted, what survives a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.conversation import converse
from holdfast.facades.universal_agent.gateway import GatewayRequest, GatewaySession, InProcessGateway
from holdfast.facades.universal_agent.runtime_db import AGENT
from holdfast.http import web
from holdfast.http.gateway import LATER
from holdfast.http.security import checks
from holdfast.testing import Script, call, say
from tests.facades.test_gateways import Talk
from tests.http.client import Client
from tests.http.conftest import Serve
from tests.support.agents import redeclare
from tests.support.apps import PATIENCE, eventually, happens

SESSIONS = "/gateway/api/v1/sessions"
ANN = Principal("ann", "operator")


@pytest.fixture
def gateway(hf: Holdfast, tmp_path: Path) -> InProcessGateway:
    hf.agent(AGENT, model="scripted:")
    return InProcessGateway(hf, workspace_base=tmp_path / "workspaces", confined=True)


async def turn(gateway: InProcessGateway, session: GatewaySession) -> list[str]:
    return [event.type async for event in gateway.execute(session, GatewayRequest("Hello"))]


def put_link(place: Path, target: Path) -> None:
    shutil.rmtree(place)
    place.symlink_to(target)


def files_of(folder: Path) -> list[tuple[Path, int]]:
    return sorted((each, each.stat().st_mtime_ns) for each in folder.rglob("*"))


@pytest.mark.parametrize("where", ["/outside", "/workspaces/../outside", "/workspaces/link/below", None, 3])
async def test_what_a_client_writes_into_metadata_leads_no_turn_out_of_the_workspaces(
    hf: Holdfast, gateway: InProcessGateway, tmp_path: Path, where: Any
) -> None:
    """By the API of sessions: neither of a session that the gateway has made, nor of one made there."""
    (tmp_path / "workspaces").mkdir()
    (tmp_path / "workspaces" / "link").symlink_to(tmp_path / "outside")
    session = await gateway.create_session("ann", session_id="one")
    assert await turn(gateway, session)
    forged = {"gateway": "universal_agent", "user_id": "ann", "status": "active"}
    forged["workspace_dir"] = f"{tmp_path}{where}" if isinstance(where, str) else where
    client = Client(web(hf, gateway=gateway, who=lambda _: ANN))
    changed = await client.call("PATCH", "/api/v1/sessions/one", {"metadata": forged})
    made = await client.post("/api/v1/sessions", {"key": "two", "metadata": forged})
    assert (changed.status, made.status) == (200, 201), (changed.body, made.body)
    for name in ("one", "two"):
        assert (await client.get(f"{SESSIONS}/{name}")).status == 404
    for name in ("one", "two"):
        with pytest.raises(ValueError, match=name):
            await turn(gateway, GatewaySession(name, "ann", session.workspace_dir, {}))
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["activity.jsonl", "run_manifest.json", "work_products"])
async def test_no_link_in_a_workspace_is_followed(
    gateway: InProcessGateway, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A tool of the agent may have put it there."""
    session = await gateway.create_session("ann", session_id="one")
    place, target = Path(session.workspace_dir) / name, tmp_path / "victim"
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    (target.mkdir() if name == "work_products" else target.write_text("mine"))
    place.symlink_to(target)
    with contextlib.suppress(UsageError):
        await turn(gateway, session)
    assert list(target.iterdir()) == [] if target.is_dir() else target.read_text() == "mine"


@pytest.mark.parametrize("moved", ["workspaces/one", "workspaces"])
async def test_a_tool_that_puts_a_link_in_the_place_of_its_workspace_leads_no_note_out(
    hf: Holdfast, gateway: InProcessGateway, tmp_path: Path, moved: str
) -> None:
    """The log is written once more when the tools have run."""
    (tmp_path / "victim" / "one").mkdir(parents=True)

    @hf.tool
    def swap() -> str:
        """Move it away, and put a link there."""
        (tmp_path / moved).rename(tmp_path / "away")
        (tmp_path / moved).symlink_to(tmp_path / "victim" / ("one" if moved.endswith("one") else ""))
        return "done"

    hf.script("swapping", Script(call("swap"), say("done")))
    redeclare(hf, AGENT, model="scripted:swapping", tools=[swap])
    session = await gateway.create_session("ann", session_id="one")
    assert (await turn(gateway, session))[-1] == "iteration_end"
    with pytest.raises(UsageError):
        await gateway.create_session("ann", session_id="one")
    with contextlib.suppress(UsageError):
        await gateway.create_session("ann", session_id="two")
    assert [each.name for each in (tmp_path / "victim").rglob("*")] == ["one"]


async def test_a_session_has_the_workspace_of_its_own_id_whatever_clients_write(
    hf: Holdfast, gateway: InProcessGateway
) -> None:
    """Neither that of another user, nor a link that leads there, nor by making a session that shares it."""
    anns = Path((await gateway.create_session("ann", session_id="anns")).workspace_dir)
    eves = await gateway.create_session("eve", session_id="eves")
    client = Client(web(hf, gateway=gateway, who=lambda _: Principal("eve", "operator")))
    before = files_of(anns)
    forged = {**(await hf.sessions.get("eves")).metadata, "workspace_dir": str(anns)}
    for link in (False, True):
        if link:
            put_link(Path(eves.workspace_dir), anns)
        assert (await client.call("PATCH", "/api/v1/sessions/eves", {"metadata": forged})).status == 200
        assert (await client.get(f"{SESSIONS}/eves")).status == 404
        with pytest.raises(ValueError, match="eves"):
            await turn(gateway, eves)
    for body in ({"user_id": "eve"}, {"user_id": "eve", "session_id": "more"}):
        for folder in (str(anns), "anns", f"{anns}/work_products"):
            assert (await client.post(SESSIONS, {**body, "workspace_dir": folder})).status == 422
    assert (await client.post(SESSIONS, {"user_id": "eve", "workspace_dir": "own"})).json["session_id"] == "own"
    assert files_of(anns) == before


class Speaker:
    """A client of the stream, as a browser or a program of another language would be one."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def say(self, type: str, **data: Any) -> None:
        await self._socket.send(json.dumps({"type": type, "data": data}))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            heard: dict[str, Any] = json.loads(await self._socket.recv())
            return heard

    async def until(self, type: str, **data: Any) -> list[dict[str, Any]]:
        """Everything that is heard up to a message like this."""
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["type"] != type or not data.items() <= heard[-1]["data"].items():
            heard.append(await self.hear())
        return heard

    async def closed(self) -> int:
        """The code with which the server closes; what it says before is dropped."""
        while True:
            try:
                await self.hear()
            except ConnectionClosed as closed:
                return 1006 if closed.rcvd is None else closed.rcvd.code


@asynccontextmanager
async def speaking(port: int, session: str = "one", **headers: str) -> AsyncIterator[Speaker]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"ws://127.0.0.1:{port}{SESSIONS}/{session}/stream"
    async with connect(url, additional_headers=sent, open_timeout=PATIENCE, max_size=None) as socket:
        yield Speaker(socket)


def statuses(heard: list[dict[str, Any]]) -> list[str]:
    return [each["data"]["status"] for each in heard if each["type"] == "status"]


async def test_the_server_says_why_it_closes_a_stream(hf: Holdfast, gateway: InProcessGateway, serve: Serve) -> None:
    """The six codes."""
    await gateway.create_session("ann", session_id="one")
    app = web(hf, gateway=gateway, who=lambda request: _who(request.headers.get("x-user")))
    port = await serve(app)
    bob = {"x_user": "operator"}
    for session, headers, code in (
        ("a%2Fb", bob, 4000),
        ("-bad", bob, 4000),
        ("one", {"x_user": "viewer"}, 4003),
        ("one", {**bob, "origin": "http://evil.example"}, 4003),
        ("one", {**bob, "cookie": "a=b"}, 4003),
        ("one", {**bob, "sec_fetch_site": "cross-site"}, 4003),
        ("two", bob, 4004),
        ("one", {"x_user": "stranger"}, 4004),
        ("one", {}, 4401),
        ("one", {"authorization": "Bearer hft_wrong"}, 4401),
    ):
        async with speaking(port, session, **headers) as client:
            assert await client.closed() == code, (session, headers)
    read_only = await serve(web(hf, gateway=gateway, who=lambda _: ANN, read_only=True))
    async with speaking(read_only) as client:
        assert await client.closed() == 4403
    async with speaking(port, **bob, origin=f"http://127.0.0.1:{port}") as client:
        assert (await client.hear())["type"] == "connected"


def _who(name: str | None) -> Principal | None:
    if name == "stranger":
        return Principal("eve", "admin", "evil")
    return None if name is None else Principal(name, name)  # type: ignore[arg-type]


async def test_a_server_that_breaks_says_so(hf: Holdfast, gateway: InProcessGateway, serve: Serve) -> None:
    await gateway.create_session("ann", session_id="one")

    def breaks(_: object) -> Principal:
        raise RuntimeError("the host app broke")

    port = await serve(web(hf, gateway=gateway, who=breaks))
    async with speaking(port) as client:
        assert await client.closed() == 1011


async def test_a_turn_outlives_its_socket(hf: Holdfast, gateway: InProcessGateway, serve: Serve) -> None:
    """Who returns with the id hears on, and nothing runs twice; the same id later is told what came of it."""
    begun, free = _tool_that_waits(hf)
    await gateway.create_session("ann", session_id="one")
    port = await serve(web(hf, gateway=gateway, who=lambda _: ANN))
    async with speaking(port) as client:
        await client.say("execute", user_input="Hello", client_turn_id="t1")
        heard = await client.until("tool_call")
        assert statuses(heard)[0] == "accepted"
        await happens(begun)
    async with speaking(port) as client, speaking(port) as other:
        await client.say("execute", user_input="Hello", client_turn_id="t1")
        heard = await client.until("tool_call")
        assert statuses(heard)[0] == "duplicate_in_progress"
        await client.say("execute", user_input="Hello", client_turn_id="t1")
        await client.until("status", status="duplicate_in_progress")
        await client.say("execute", user_input="Other", client_turn_id="t2")
        await client.until("status", status="busy")
        await other.say("query", text="Something else")
        heard = await other.until("query_complete")
        assert statuses(heard) == ["busy"]
        free.set()
        heard = await client.until("query_complete")
        assert heard[-2]["type"] == "iteration_end"
        assert heard[-2]["data"]["response_text"] == "done"
        await other.say("execute", user_input="Hello", client_turn_id="t1")
        heard = await other.until("query_complete")
        assert statuses(heard)[0] == "duplicate_completed"
        assert heard[-2]["data"]["response_text"] == "done"
        await other.say("execute", user_input="Another request", client_turn_id="t1")
        heard = await other.until("query_complete")
        assert heard[-2]["data"]["code"] == "IdempotencyConflict"
    assert (await hf.sessions.get("one")).runs == 1


def _tool_that_waits(hf: Holdfast) -> tuple[asyncio.Event, asyncio.Event]:
    begun, free = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await happens(free)
        return ""

    hf.script("waiting", Script(call("wait"), say("done")))
    redeclare(hf, AGENT, model="scripted:waiting", tools=[wait])
    return begun, free


async def test_the_same_words_without_an_id_are_the_same_turn_for_a_while(
    hf: Holdfast, gateway: InProcessGateway, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.create_session("ann", session_id="one")
    port = await serve(web(hf, gateway=gateway, who=lambda _: ANN))
    async with speaking(port) as client:
        admitted = []
        for said in ("Hello", "Hello", "Other", "Hello"):
            await client.say("execute", user_input=said)
            admitted.append(statuses(await client.until("query_complete"))[0])
        assert admitted == ["accepted", "duplicate_completed", "accepted", "accepted"]
        monkeypatch.setattr("holdfast.facades.universal_agent.conversation.REPEATED_WITHIN", timedelta(0))
        await client.say("execute", user_input="Hello")
        assert statuses(await client.until("query_complete"))[0] == "accepted"
    assert (await hf.sessions.get("one")).runs == 4


async def test_what_a_client_gets_wrong_ends_its_turn_and_not_its_stream(
    hf: Holdfast, gateway: InProcessGateway, serve: Serve
) -> None:
    await gateway.create_session("ann", session_id="one")
    port = await serve(web(hf, gateway=gateway, who=lambda _: ANN))
    async with speaking(port) as client:
        await client.hear()
        wrong: list[dict[str, Any]] = [{"max_turns": "many"}, {"turn_timeout_seconds": []}, {"max_turns": -1}]
        for metadata in wrong:
            await client.say("execute", user_input="Hello", metadata=metadata)
            heard = await client.until("query_complete")
            assert [each["type"] for each in heard] == ["error", "query_complete"], heard
        await client.say("execute", user_input="NUL \0 and \ud800")
        heard = await client.until("query_complete")
        assert heard[0]["type"] == "error"
        await client.say("ping")
        await client.until("pong")
    async with speaking(port) as client:
        await client._socket.send(b"\x00\x01")
        assert await client.closed() == 1003


async def test_a_revoked_token_ends_its_streams(hf: Holdfast, gateway: InProcessGateway, serve: Serve) -> None:
    await gateway.create_session("ann", session_id="one")
    token = await hf.access.tokens.create("ci", role="operator")
    port = await serve(web(hf, gateway=gateway))
    async with speaking(port, authorization=f"Bearer {token.secret}") as client:
        assert (await client.hear())["type"] == "connected"
        await hf.access.tokens.revoke(token.id)
        assert await client.closed() == 4401


async def test_streams_have_a_cap(
    hf: Holdfast, gateway: InProcessGateway, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "STREAMS_EACH", 1)
    await gateway.create_session("ann", session_id="one")
    port = await serve(web(hf, gateway=gateway, who=lambda _: ANN))
    async with speaking(port) as first, speaking(port) as second:
        await first.hear()
        assert await second.closed() == LATER


async def test_a_host_that_is_not_named_gets_no_stream(hf: Holdfast, gateway: InProcessGateway, serve: Serve) -> None:
    port = await serve(web(hf, gateway=gateway, who=lambda _: ANN, hosts=["ops.example"]))
    with pytest.raises(Exception, match="403"):
        async with speaking(port):
            pass


async def test_tenants_have_gateways_of_their_own(hf: Holdfast, gateway: InProcessGateway, tmp_path: Path) -> None:
    """The same id is another session for each, with a folder of its own, and ids of others are not there."""
    clients = {
        tenant: Client(web(hf, gateway=gateway, who=lambda _, tenant=tenant: Principal("ann", "operator", tenant)))  # type: ignore[misc]
        for tenant in ("acme", "evil", None)
    }
    folders = set()
    for client in clients.values():
        made = await client.post(SESSIONS, {"user_id": "ann", "session_id": "one"})
        assert made.status == 201, made.body
        folders.add(made.json["workspace_dir"])
        listed = (await client.get(SESSIONS)).json["sessions"]
        assert [each["workspace_dir"] for each in listed] == [made.json["workspace_dir"]]
    assert len(folders) == 3
    acme = gateway.within("acme", {}, "ann")
    turn = [event async for event in acme.execute(await acme.resume_session("one"), GatewayRequest("Secret"))]
    run = turn[0].data["run_id"]
    assert (await hf.runs.get(run)).tenant == "acme"
    for tenant, client in clients.items():
        for path in (f"/runs/{run}", f"/runs/{run}/attempts"):
            answer = await client.get(f"/gateway/api/v1{path}")
            assert answer.status == (404 if tenant == "evil" else 200), (tenant, path, answer.body)
            assert b"Secret" not in answer.body or tenant != "evil"
    outside = {"user_id": "ann", "workspace_dir": str(tmp_path / "elsewhere")}
    assert (await clients["acme"].post(SESSIONS, outside)).status == 422
    assert (await clients[None].post(SESSIONS, outside)).status == 422
    assert not (tmp_path / "elsewhere").exists()


async def test_pinned_metadata_bind_the_gateway_too(hf: Holdfast, gateway: InProcessGateway) -> None:
    await gateway.create_session("eve", session_id="eves")
    bob = Client(web(hf, gateway=gateway, who=lambda _: ANN, metadata={"owner": "bob"}))
    made = await bob.post(SESSIONS, {"user_id": "bob", "session_id": "bobs"})
    assert made.json["metadata"]["owner"] == "bob"
    assert [each["session_id"] for each in (await bob.get(SESSIONS)).json["sessions"]] == ["bobs"]
    for method in ("GET", "DELETE"):
        assert (await bob.call(method, f"{SESSIONS}/eves")).status == 404
    assert (await bob.post(SESSIONS, {"user_id": "eve", "session_id": "eves"})).status == 422


async def test_get_resumes_without_writing(hf: Holdfast, gateway: InProcessGateway) -> None:
    session = await gateway.create_session("ann", session_id="one")
    client = Client(web(hf, gateway=gateway, who=lambda _: ANN))
    assert (await client.call("DELETE", f"{SESSIONS}/one")).status == 200
    before = (await hf.sessions.get("one"), (Path(session.workspace_dir) / "activity.jsonl").read_text())
    assert (await client.get(f"{SESSIONS}/one")).json["metadata"]["status"] == "closed"
    assert (await hf.sessions.get("one"), (Path(session.workspace_dir) / "activity.jsonl").read_text()) == before
    assert (await client.get(f"{SESSIONS}/nobody")).status == 404
    assert (await client.get(f"{SESSIONS}/nobody/pending")).status == 404
    assert len(await hf.sessions.list()) == 1
    _ = [event async for event in gateway.execute(session, GatewayRequest("Hello"))]
    assert (await client.get(f"{SESSIONS}/one")).json["metadata"]["status"] == "active"


async def test_what_waits_for_a_person_is_listed_and_approved(
    hf: Holdfast, gateway: InProcessGateway, serve: Serve
) -> None:
    @hf.tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    hf.script("paying", Script(call("pay"), say("done")))
    redeclare(hf, AGENT, model="scripted:paying", tools=[pay])
    await gateway.create_session("ann", session_id="one")
    app = web(hf, gateway=gateway, who=lambda _: ANN)
    port, client = await serve(app), Client(app)
    async with speaking(port) as speaker:
        assert (await client.post(f"{SESSIONS}/one/resume", {})).status == 422
        await speaker.say("execute", user_input="Pay")
        asked = (await speaker.until("input_required"))[-1]["data"]
        (pending,) = (await client.get(f"{SESSIONS}/one/pending")).json["pending"]
        assert (pending["input_id"], pending["call"]["name"]) == (asked["input_id"], "pay")
        said = await client.post(f"{SESSIONS}/one/resume", {})
        assert said.json == {"input_id": asked["input_id"], "accepted": True}
        assert (await speaker.until("query_complete"))[-2]["data"]["response_text"] == "done"
    assert (await hf.inquiries.get(asked["input_id"])).decided_by == "ann"
    assert (await client.get(f"{SESSIONS}/one/pending")).json["pending"] == []


async def test_turns_are_in_the_audit(hf: Holdfast, gateway: InProcessGateway, serve: Serve) -> None:
    await gateway.create_session("ann", session_id="one")
    port = await serve(web(hf, gateway=gateway, who=lambda _: ANN))
    async with speaking(port) as client:
        await client.say("execute", user_input="My secret", client_turn_id="t1")
        await client.until("query_complete")
        await client.say("cancel")
        await client.until("status", status="cancelling")
    rows = [(row.action, row.phase, row.actor, row.status) for row in await hf.access.audit.list()]
    assert rows == [
        ("WS cancel", "outcome", "ann", 200),
        ("WS cancel", "intent", "ann", None),
        ("WS execute", "outcome", "ann", 200),
        ("WS execute", "intent", "ann", None),
    ]
    assert "My secret" not in str(await hf.access.audit.list())


async def test_runs_of_pools_and_turns_are_shown(hf: Holdfast, gateway: InProcessGateway) -> None:
    session = await gateway.create_session("ann", session_id="one")
    events = [event async for event in gateway.execute(session, GatewayRequest("Hello"))]
    client = Client(web(hf, gateway=gateway, who=lambda _: Principal("ann", "viewer")))
    shown = (await client.get(f"/gateway/api/v1/runs/{events[0].data['run_id']}")).json
    assert (shown["status"], shown["session_id"], shown["last_job_prompt"]) == ("completed", "one", "Hello")
    attempts = (await client.get(f"/gateway/api/v1/runs/{shown['run_id']}/attempts")).json["attempts"]
    assert [each["status"] for each in attempts] == ["completed"]
    await gateway._runtime.runs.queue("job_1", "Analyze")
    assert (await client.get("/gateway/api/v1/runs/job_1")).json["status"] == "queued"
    assert (await client.get("/gateway/api/v1/runs/job_1/attempts")).json["attempts"] == []
    assert (await client.get("/gateway/api/v1/runs/job_2")).status == 404
    assert (await Client(web(hf, gateway=gateway)).get("/gateway/api/v1/health")).json == {"status": "healthy"}
    assert (await Client(web(hf)).get("/gateway/api/v1/health")).status == 404
    await gateway.close()


async def test_a_quiet_turn_has_a_heartbeat(hf: Holdfast, gateway: InProcessGateway) -> None:
    _, free = _tool_that_waits(hf)
    await gateway.create_session("ann", session_id="one")
    talk = Talk(json.dumps({"type": "execute", "data": {"user_input": "Hello"}}))
    talking = asyncio.create_task(converse(gateway, "one", talk, SystemClock(), heartbeat=0.02))

    async def beaten() -> bool:
        return [each.type for each in talk.heard].count("heartbeat") > 1

    await eventually(beaten)
    free.set()
    await talking
    assert talk.heard[-1].type == "query_complete"
