"""Streams over HTTP: a run, a session, the fleet, as server-sent events that continue behind Last-Event-ID."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Header
from starlette.requests import Request
from starlette.responses import Response

from holdfast.agents.events.reader import ENDED, NOW, read_topic_cursor
from holdfast.http.api.answers import OF_THE_FLEET, event_without_fleet, without_secrets
from holdfast.http.api.routes import Routes
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.live.live import Live
from holdfast.http.live.responses import WatchedStream
from holdfast.http.sse import retold

routes = Routes("live")


async def live_of(request: Request) -> Live:
    live: Live = request.state.live
    return live


async def watched_of(request: Request) -> WatchedStream:
    watched: WatchedStream = request.state.watched
    return watched


async def last_seen(
    after: str = "",
    last: Annotated[str, Header(alias="Last-Event-ID", description="The id of the event that was read last.")] = "",
) -> str:
    """What the reader has seen last: a browser says it when it comes back."""
    return last.strip() or after


Alive = Annotated[Live, Depends(live_of)]
Reader = Annotated[WatchedStream, Depends(watched_of)]
LastSeen = Annotated[str, Depends(last_seen)]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _told(seen: PrincipalScope, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What a viewer reads has no secrets. Text that a model writes is looked at piece by piece."""
    if not seen.sees_fleet:
        frames = retold(frames, event_without_fleet, OF_THE_FLEET)
    return retold(frames, without_secrets) if seen.principal.role == "viewer" else frames


@routes.get("/runs/{id}/stream")
async def stream_run(seen: RequestScope, live: Alive, reader: Reader, id: str, last: LastSeen) -> Response:
    """Follow a run until it has ended; 204 for who has read it to its end."""
    now = await (await seen.run(id)).refresh()
    after = _number(last)
    if now.state in ENDED and after >= now.events:
        return Response(status_code=204)
    return live.respond(_told(seen, live.run(now.id, after)), reader)


@routes.get("/sessions/{id}/stream")
async def stream_session(seen: RequestScope, live: Alive, reader: Reader, id: str, last: LastSeen) -> Response:
    """Follow the runs of a session, one after the other. An event's id is `ordinal.seq`."""
    session = await seen.session(id)
    ordinal, _, seq = last.partition(".")
    return live.respond(_told(seen, live.session(session, (_number(ordinal), _number(seq)))), reader)


@routes.get("/events")
async def stream_fleet(
    live: Alive,
    reader: Reader,
    last: LastSeen,
    agent: str | None = None,
    session: str | None = None,
    run: str | None = None,
    root: str | None = None,
) -> Response:
    """Follow what happens to all runs, from a cursor on (`after=now`: from now on), with a sample every two seconds.

    `root` is a run: with all runs that it started, at any depth.
    """
    if last == NOW:
        last = await live.newest_cursor()  # before the first byte: a reader that sees a sample misses nothing after it
    read_topic_cursor(last)
    await live.sampler.sample()  # which says what is wrong with the store before a stream begins
    return live.respond(live.fleet(last, agent=agent, session=session, run=run, root=root), reader)
