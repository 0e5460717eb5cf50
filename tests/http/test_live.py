"""Streams of the API: many readers of one run, a session, the fleet; those who are slow, and those who may not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.errors import StoreUnavailable
from holdfast.events import RunEnded
from holdfast.http.app import framework
from holdfast.http.live import live as live_streams
from holdfast.http.live import responses
from holdfast.http.security.gate import Gate, WebOptions
from holdfast.http.sse import frame_of
from holdfast.models.script import Script, call, say
from tests.http.browser import Frame, request
from tests.http.client import Client
from tests.http.conftest import Serve
from tests.http.test_api import guide
from tests.http.test_sse import ANSWER, talker, text_of
from tests.support.apps import MakeApp, eventually, working

API = "/api/v1"


def gate_of(hf: Holdfast, principal: Principal | None = None) -> Gate:
    return Gate(hf, WebOptions(who=None if principal is None else lambda _: principal))


async def read(port: int, path: str, **headers: str) -> list[Frame]:
    async with request(port, path, **headers) as reader:
        assert reader.status == 200, await reader.body()
        return [frame async for frame in reader.frames()]


async def test_many_readers_of_one_run_cost_one_reading(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app(script_pace="5ms", stream_interval="10ms")
    hold = asyncio.Event()
    agent = talker(hf, hold)
    gate = gate_of(hf, Principal("ann", "viewer"))
    port = await serve(framework(gate))
    run = await agent.enqueue("Go")
    readers = [asyncio.create_task(read(port, f"{API}/runs/{run.id}/stream")) for _ in range(15)]

    async def all_read() -> bool:
        return [each.readers for each in gate.live.channels.open.values()] == [15]

    await eventually(all_read)
    (channel,) = gate.live.channels.open.values()
    async with working(hf):
        hold.set()
        seen = await asyncio.gather(*readers)
    for frames in seen:
        assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
        assert text_of(frames) == ANSWER
        assert frames[-1].data["result"]["text"] == ANSWER
    assert channel.encoded == len(seen[0])
    assert (gate.live.channels.open, gate.live.counts.open) == ({}, 0)
    async with request(port, f"{API}/runs/{run.id}/stream", last_event_id=str(len(seen[0]))) as reader:
        assert reader.status == 204


async def test_who_comes_late_pages_alone_and_then_joins(
    make_app: MakeApp, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_streams, "_KEPT_BEFORE", 3)
    hf = make_app(stream_interval="10ms")
    await talker(hf).run("Go")
    (run,) = await hf.runs.list()
    port = await serve(framework(gate_of(hf, Principal("ann"))))
    whole = await read(port, f"{API}/runs/{run.id}/stream")
    assert [frame.id for frame in whole] == list(range(1, run.events + 1))
    assert text_of(whole) == ANSWER
    some = await read(port, f"{API}/runs/{run.id}/stream?after=2")
    assert some == whole[2:]
    later = await read(port, f"{API}/runs/{run.id}/stream", last_event_id=str(run.events - 1))
    assert later == whole[-1:]


async def test_who_falls_out_of_what_is_kept_is_let_go_and_comes_back(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_streams, "KEPT_BYTES", 500)
    hf = make_app(stream_interval="10ms")
    run = await talker(hf).enqueue("Go")
    shared = live_streams.Channels(lambda id: hf.runs[id])
    first = shared.follow(run.id, 0)
    seen = await anext(first)
    async with working(hf):
        await run.result()

        async def read_on() -> bool:
            return shared.of(run.id).ended

        await eventually(read_on)  # the channel has; this reader has not
    with pytest.raises(StoreUnavailable, match="come back with its last number"):
        await anext(first)
    async with aclosing(shared.follow(run.id, 1)) as frames:
        seen += b"".join([data async for data in frames])
    ids = [int(part.partition(b"\n")[0]) for part in seen.split(b"id: ")[1:]]
    assert ids == list(range(1, len(ids) + 1))
    assert seen.count(b"event: run_ended") == 1


async def test_a_session_is_followed_over_its_runs(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app(stream_interval="10ms")
    agent = talker(hf)
    port = await serve(framework(gate_of(hf, Principal("ann"))))
    first = await agent.run("One", session="chat")
    seen: list[Frame] = []
    second = None
    async with request(port, f"{API}/sessions/chat/stream") as reader:
        async for frame in reader.frames():
            seen.append(frame)
            if frame.event == "run_ended":
                if len([each for each in seen if each.event == "run_ended"]) == 2:
                    break
                second = await agent.enqueue("Two", session="chat")
    assert second is not None
    events = (await hf.runs.get(first.run_id)).events, (await hf.runs.get(second.id)).events
    expected = [f"{run}.{seq}" for run, count in enumerate(events, 1) for seq in range(1, count + 1)]
    assert [frame.place for frame in seen] == expected
    last = f"1.{events[0] - 1}"
    async with request(port, f"{API}/sessions/chat/stream", last_event_id=last) as reader:
        frames = reader.frames()
        assert [(await anext(frames)).place for _ in range(2)] == [f"1.{events[0]}", "2.1"]


async def test_the_fleet_is_followed_with_samples(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app(stream_interval="10ms")
    agent = talker(hf)
    await agent.run("Before")
    port = await serve(framework(gate_of(hf, Principal("ann"))))
    seen: list[Frame] = []
    started: list[str] = []
    async with request(port, f"{API}/events?after=now&agent=talker") as reader:
        async for frame in reader.frames():
            seen.append(frame)
            if not started:
                started.append((await agent.enqueue("Now")).id)
            if frame.event == "run_finalized":
                break
    topics = [frame for frame in seen if frame.event != "sample"]
    assert (topics[0].event, {frame.data["run"] for frame in topics}) == ("run_created", set(started))
    assert {"queues", "agents", "workers", "oldest_pending"} <= set(seen[0].data)
    assert seen[0].data["workers"] == 1
    again: list[Frame] = []
    async with request(port, f"{API}/events", last_event_id=topics[0].place) as reader:
        async for frame in reader.frames():
            if frame.event != "sample":
                again.append(frame)
            if frame.event == "run_finalized":
                break
    assert [frame.place for frame in again] == [frame.place for frame in topics[1:]]


async def test_the_fleet_is_followed_below_one_run(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app()
    hf.script("child", Script(say("Found.")))
    hf.script("parent", Script(call("child", task="Find it."), say("Done.")))
    child = hf.agent("child", model="scripted:child")
    parent = hf.agent("parent", model="scripted:parent", agents=[child])
    await parent.run("Another tree")
    run = await parent.enqueue("This tree")
    await run.result()
    below = {each.id for each in await hf.runs.list(parent=run.id)}
    port = await serve(framework(gate_of(hf, Principal("ann"))))

    async def heard(filters: str) -> list[Frame]:
        seen: list[Frame] = []
        async with request(port, f"{API}/events?{filters}") as reader:
            async for frame in reader.frames():
                seen += [frame] if frame.event != "sample" else []
                if frame.event == "run_finalized" and frame.data["run"] in (
                    {run.id} if "agent" not in filters else below
                ):
                    return seen
        raise AssertionError("the stream ended")

    tree = await heard(f"root={run.id}")
    assert {frame.data["run"] for frame in tree} == {run.id, *below}
    assert {frame.event for frame in tree} >= {"run_created", "run_state", "tool_pending", "run_finalized"}
    assert {frame.data["run"] for frame in await heard(f"root={run.id}&agent=child")} == below
    session = (await hf.runs.get(run.id)).session
    assert [frame.place for frame in await heard(f"session={session}")] == [frame.place for frame in tree]
    assert {frame.data["run"] for frame in await heard(f"run={run.id}")} == {run.id}


async def test_one_sample_is_encoded_once_for_all_who_watch(hf: Holdfast) -> None:
    await guide(hf).enqueue("Hi")
    live = gate_of(hf).live
    first, second = (live.fleet("now") for _ in range(2))
    async with aclosing(first), aclosing(second):  # type: ignore[type-var]
        assert (await anext(first)) is (await anext(second))


async def test_who_takes_too_long_to_take_a_piece_is_closed(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "SLOWEST_SEND", 0.05)
    hf = make_app(embedded=False)
    run = await talker(hf).enqueue("Go")
    gate = gate_of(hf, Principal("ann"))
    taken: list[bytes] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        taken.append(message.get("body", b""))
        if b"run_created" in taken[-1]:
            await asyncio.Event().wait()  # the connection takes no more

    scope = {"type": "http", "method": "GET", "path": f"{API}/runs/{run.id}/stream", "headers": [], "query_string": b""}
    await framework(gate)({**scope, "root_path": "", "client": ("127.0.0.1", 1)}, receive, send)
    assert gate.live.counts.open == 0
    assert gate.live.channels.open == {}


async def test_what_waits_for_a_reader_leaves_in_one_write(make_app: MakeApp) -> None:
    hf = make_app(stream_interval="10ms")
    run = await talker(hf).enqueue("Go")
    shared = live_streams.Channels(lambda id: hf.runs[id])
    async with aclosing(shared.follow(run.id, 0)) as frames:
        first = await anext(frames)
        async with working(hf):
            await run.result()

            async def read_on() -> bool:
                return shared.of(run.id).ended

            await eventually(read_on)
        rest = await anext(frames)
        assert first.count(b"id: ") + rest.count(b"id: ") == (await hf.runs.get(run.id)).events
        assert await anext(frames, None) is None


async def test_a_revoked_token_ends_its_streams(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app(embedded=False)
    run = await talker(hf).enqueue("Go")
    kept, lost = [await hf.access.tokens.create(name) for name in ("kept", "lost")]
    gate = gate_of(hf)
    port = await serve(framework(gate))
    paths = [f"{API}/runs/{run.id}/stream", f"{API}/sessions/{(await hf.runs.get(run.id)).session}/stream"]
    for path in paths:
        async with (
            request(port, path, authorization=f"Bearer {kept.secret}") as stays,
            request(port, path, authorization=f"Bearer {lost.secret}") as goes,
        ):
            frames = stays.frames()
            assert (await anext(frames)).event == "run_created"
            if path == paths[-1]:
                await hf.access.tokens.revoke(lost.id)
                assert [frame.event async for frame in goes.frames()] == ["run_created"]
                assert gate.live.counts.open == 1


async def test_one_principal_has_so_many_streams(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    run = await talker(hf).enqueue("Go")
    gate = gate_of(hf, Principal("ann"))
    client = Client(framework(gate))
    held = [asyncio.create_task(client.get(f"{API}/runs/{run.id}/stream")) for _ in range(20)]

    async def all_open() -> bool:
        return gate.live.counts.open == 20

    await eventually(all_open)
    answer = await client.get(f"{API}/runs/{run.id}/stream")
    assert (answer.status, answer.json["error"]) == (429, "TooManyParts")
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert gate.live.counts.open == 0


async def test_a_run_that_ends_while_nobody_follows_is_read_whole(hf: Holdfast) -> None:
    hf.script("short", Script(say("Hi.")))
    run = await hf.agent("short", model="scripted:short").run("Go")
    shared = live_streams.Channels(lambda id: hf.runs[id])
    async with aclosing(shared.follow(run.run_id, 0)) as frames:
        seen = b"".join([data async for data in frames])
    events = [event async for event in hf.runs[run.run_id].stream()]
    assert isinstance(events[-1], RunEnded)
    assert seen == b"".join(map(frame_of, events))
