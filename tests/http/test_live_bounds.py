"""How long a stream lasts: while who reads it may, and what it is about is there; and what many of them cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, aclosing
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.agents.events import reader as event_reader
from holdfast.app import core_of
from holdfast.errors import NotFound, StoreUnfit
from holdfast.http import web
from holdfast.http.app import framework
from holdfast.http.live import responses
from holdfast.http.live.live import Live
from holdfast.http.security.gate import Gate, WebOptions
from holdfast.kernel.database import Bounds, bound
from tests.http.browser import request
from tests.http.conftest import Serve
from tests.http.test_access import expire
from tests.http.test_gateway import gateway, speaking
from tests.http.test_live import API
from tests.http.test_row_security import LOGIN, login, turn
from tests.http.test_row_security import hf as secured
from tests.http.test_sse import talker
from tests.support.apps import PATIENCE, MakeApp, eventually, working

__all__ = ["gateway", "login", "secured", "turn"]


class Host:
    """An app whose users come and go."""

    def __init__(self) -> None:
        self.user: Principal | None = Principal("ann", "operator")
        self.problem: Exception | None = None
        self.asked = 0

    def who(self, _: Any) -> Principal | None:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return self.user


@pytest.mark.parametrize("change", ["gone", "demoted", "broken"])
async def test_whom_the_host_app_no_longer_knows_is_dismissed(
    make_app: MakeApp, serve: Serve, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(responses, "ASKED_AGAIN", 0.05)
    hf, host = make_app(embedded=False), Host()
    run = await talker(hf).enqueue("Go")
    port = await serve(web(hf, who=host.who))
    async with request(port, f"{API}/runs/{run.id}/stream") as reader:
        frames = reader.frames()
        assert (await anext(frames)).event == "run_created"
        asked = host.asked

        async def asked_again() -> bool:
            return host.asked > asked

        await eventually(asked_again)
        assert not reader._stream.at_eof()
        if change == "gone":
            host.user = None
        elif change == "demoted":
            host.user = Principal("ann", "viewer")
        else:
            host.problem = RuntimeError("the host's own database is away")
        assert [frame async for frame in frames] == []


async def test_a_socket_of_whom_the_host_app_no_longer_knows_is_closed(
    hf: Holdfast, gateway: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "ASKED_AGAIN", 0.05)
    await gateway.create_session("ann", session_id="one")
    host = Host()
    port = await serve(web(hf, gateway=gateway, who=host.who))
    async with speaking(port) as client:
        assert (await client.hear())["type"] == "connected"
        host.user = None
        assert await client.closed() == 4401


async def test_a_cookie_that_says_nothing_ends_no_stream(make_app: MakeApp, serve: Serve) -> None:
    """An old cookie of a login does not count where the host app says who asks."""
    hf = make_app(embedded=False)
    run = await talker(hf).enqueue("Go")
    token = await hf.access.tokens.create("ann")
    gate = Gate(hf, WebOptions(who=lambda _: Principal("ann")))
    port = await serve(framework(gate))
    async with request(port, "/login", "POST", content_length="0") as reader:
        assert reader.status in (401, 422)
    cookie = "__Host-holdfast-e3b0c442=old"
    lost = await hf.access.tokens.create("lost")
    async with (
        request(port, f"{API}/runs/{run.id}/stream", cookie=cookie) as stays,
        request(port, f"{API}/runs/{run.id}/stream", authorization=f"Bearer {lost.secret}") as goes,
    ):
        assert (await anext(stays.frames())).event == "run_created"
        await hf.access.tokens.revoke(lost.id)
        assert [frame.event async for frame in goes.frames()] == ["run_created"]  # one look of the vigil later
        assert gate.live.counts.open == 1
    assert token.state == "live"


async def test_a_token_that_expires_ends_its_streams(make_app: MakeApp, serve: Serve) -> None:
    """Also those that a login reads which was made with it; whose token lasts reads on."""
    hf = make_app(embedded=False)
    run = await talker(hf).enqueue("Go")
    short, kept = [await hf.access.tokens.create(name, lasts="90d") for name in ("short", "kept")]
    gate = Gate(hf, WebOptions())
    port = await serve(framework(gate))
    principal = await hf.access.tokens.principal(short.secret)
    assert principal is not None
    cookie = f"__Host-holdfast-e3b0c442={await hf.access.logins.begin(principal)}"
    shown = [{"authorization": f"Bearer {short.secret}"}, {"cookie": cookie}]
    paths = [f"{API}/events", f"{API}/runs/{run.id}/stream"]
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(request(port, path, **headers)) for path in paths for headers in shown
        ]
        stays = await stack.enter_async_context(request(port, paths[1], authorization=f"Bearer {kept.secret}"))
        reading = [each.frames() for each in readers]
        for frames in (*reading, stays.frames()):
            assert (await anext(frames)).event
        await expire(hf, short.id)
        for frames in reading:
            assert "run_completed" not in [frame.event async for frame in frames]
        assert gate.live.counts.open == 1


@pytest.mark.long
async def test_a_token_that_expires_ends_its_sockets(hf: Holdfast, gateway: Any, serve: Serve) -> None:
    await gateway.create_session("ann", session_id="one")
    token = await hf.access.tokens.create("ci", role="operator", lasts="90d")
    port = await serve(web(hf, gateway=gateway))
    async with speaking(port, authorization=f"Bearer {token.secret}") as client:
        assert (await client.hear())["type"] == "connected"
        await expire(hf, token.id)
        assert await client.closed() == 4401


async def test_many_readers_of_sessions_cost_one_look(make_app: MakeApp) -> None:
    hf = make_app(stream_interval="10ms", embedded=False)
    agent = talker(hf)
    runs = [await agent.enqueue("One", session=f"s{n}") for n in range(3)]
    async with working(hf):
        for run in runs:
            await run.result()
        live = Live(hf)
        streams = [live.session(hf.sessions[f"s{n % 3}"], (0, 0)) for n in range(12)]
        heard = [asyncio.create_task(_second(stream)) for stream in streams]

        async def all_wait() -> bool:
            return sum(each.readers for each in live.news.followed.values()) == 12 and live.news.looks > 0

        await eventually(all_wait)
        assert len(live.news.followed) == 3
        second = [(await agent.enqueue("Two", session=f"s{n}")).id for n in range(3)]
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*heard)
    assert found == [second[n % 3] for n in range(12)]
    assert (live.news.followed, live.channels.open) == ({}, {})


async def _second(stream: AsyncIterator[bytes]) -> str:
    """The id of the second run that a stream of a session tells of."""
    async with aclosing(stream) as frames:  # type: ignore[type-var]
        async for data in frames:
            if b"id: 2." in data:
                return data.partition(b'"run":"')[2].partition(b'"')[0].decode()
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("what", ["runs", "sessions"])
async def test_what_is_removed_while_it_is_followed_ends_the_stream(
    make_app: MakeApp, serve: Serve, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Who follows a run whose last event was never read, or a session that waits for its next run, is told to leave."""
    monkeypatch.setattr(event_reader, "_STILL_THERE", 0.0)
    hf, other = make_app(embedded=False), make_app(embedded=False)
    run = await talker(hf).enqueue("Go", session="chat")
    port = await serve(web(other, who=lambda _: Principal("ann")))
    path = f"{API}/runs/{run.id}" if what == "runs" else f"{API}/sessions/chat"
    async with request(port, f"{path}/stream") as reader:
        frames = reader.frames()
        assert (await anext(frames)).event == "run_created"
        await _remove(hf, run.id)
        async with asyncio.timeout(PATIENCE):
            left = [frame.event async for frame in frames]
        assert set(left) <= {"run_state", "run_ended", "run_cancelled"}
    async with request(port, f"{path}/stream") as reader:
        assert reader.status == 404


async def _remove(hf: Holdfast, run: str) -> None:
    await hf.runs[run].cancel()
    await hf.sessions.delete("chat")


async def test_a_reader_of_a_removed_run_is_told_so(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "_STILL_THERE", 0.0)
    hf = make_app(embedded=False)
    run = await talker(hf).enqueue("Go", session="chat")
    streams = core_of(hf).streams()
    async with aclosing(streams.events(run.id, 10**6)) as events:  # type: ignore[type-var]  # its last event is missed
        reading = asyncio.ensure_future(anext(events))
        await _remove(hf, run.id)
        with pytest.raises(NotFound, match="any more"):
            await asyncio.wait_for(reading, PATIENCE)


async def test_what_is_refused_to_one_tenant_ends_the_streams_of_that_tenant(
    secured: Holdfast, postgres_url: str
) -> None:
    import psycopg

    run = await talker(secured).enqueue("Go", tenant="acme")
    live = Live(secured)
    streams = {}
    for bounds in (Bounds(reads=True), Bounds(reads=True, tenant="acme")):
        with bound(bounds):
            streams[bounds] = live.run(run.id, 0)
            assert b"run_created" in await anext(streams[bounds])
    everybodys, theirs = streams.values()
    with bound(Bounds(reads=True, tenant="acme")):
        waiting = asyncio.ensure_future(anext(theirs))
    with bound(Bounds(reads=True)):
        following = asyncio.ensure_future(anext(everybodys))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"revoke holdfast_web from {LOGIN}")
    with pytest.raises(StoreUnfit, match="grant holdfast_web to"):
        await asyncio.wait_for(waiting, PATIENCE)
    assert not following.done()
    await secured.runs[run.id].cancel()
    assert b"cancel" in await asyncio.wait_for(following, PATIENCE)
    await everybodys.aclose()  # type: ignore[attr-defined]


async def test_a_stream_that_begins_during_a_look_is_not_taken_for_one_that_is_revoked(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [await hf.access.tokens.create(name) for name in ("first", "second")]
    watching = responses.IdleWatch(hf.access, core_of(hf).ports.clock)
    begun: list[asyncio.Event] = []
    looks: list[int] = []
    live = hf.access.tokens.live

    async def live_meanwhile(ids: Any) -> Any:
        looks.append(len(ids))
        if not begun:
            begun.append(stack.enter_context(watching.over(responses.WatchedStream(Principal("second"), second.id))))
        return await live(ids)

    monkeypatch.setattr(hf.access.tokens, "live", live_meanwhile)
    with ExitStack() as stack:
        kept = stack.enter_context(watching.over(responses.WatchedStream(Principal("first"), first.id)))

        async def looked_again() -> bool:
            return looks[:2] == [1, 2]

        await eventually(looked_again)
        assert not kept.is_set()
        assert not begun[0].is_set()
