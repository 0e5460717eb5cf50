"""The events of a run as server-sent events, for any ASGI framework and for none.

A reader that reconnects misses nothing: every event carries its number, a browser sends the last one it saw as
`Last-Event-ID`, and the stream continues behind it. Whatever breaks ends the connection, never the run. A server that
stops waits for its open responses, and would wait for a stream until the run ends: so a stream ends when its server
begins to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

from holdfast.agents.api.run import Run
from holdfast.asgi import Receive, Scope, Send, running_servers
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.events import Event, RunEnded, wire
from holdfast.text import problem_members

# Frames: events as the bytes of server-sent events.


BEGIN = b"retry: 1000\n\n"
STILL_HERE = b": still here\n\n"
SERVER_STOPS = b": the server stops\nretry: 1000\n\n"
_DATA = b"\ndata: "
_SHORT = 4_096  # bytes


def _compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)


def frame(id: str | None, kind: str, data: Any) -> bytes:
    """One event; its data is one line, because JSON escapes the others."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {_compact(data)}\n\n".encode(errors="replace")


async def retold(
    frames: AsyncIterator[bytes], tell: Callable[[Any], Any], kinds: Collection[str] | None = None
) -> AsyncGenerator[bytes, None]:
    """The same frames with other data: what `tell` makes of it, the kind of the event as its `type`.

    `tell` is asked about events of these `kinds`, or about all.
    """
    heads = None if kinds is None else [f"event: {kind}\n".encode() for kind in kinds]
    try:
        async for data in frames:
            if heads is not None and not any(head in data for head in heads):
                yield data
            elif len(data) < _SHORT:
                yield _all_retold(data, tell)
            else:  # beside the event loop: who wrote the text may have made it long
                yield await asyncio.to_thread(_all_retold, data, tell)
    finally:
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()


def _all_retold(data: bytes, tell: Callable[[Any], Any]) -> bytes:
    return b"\n\n".join(_retold(each, tell) for each in data.split(b"\n\n"))


def _retold(one: bytes, tell: Callable[[Any], Any]) -> bytes:
    head, mark, text = one.partition(_DATA)
    if not mark:
        return one
    kind = head.partition(b"event: ")[2].decode()
    event = tell({**json.loads(text), "type": kind})
    del event["type"]
    return head + mark + _compact(event).encode(errors="replace")


def frame_of(event: Event) -> bytes:
    kind, data = wire(event)
    return frame(str(event.seq), kind, data)


log = logging.getLogger("holdfast.http")

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would keep it until a buffer is full
}
_KEEP_ALIVE = 15.0
_LOOK = 0.2  # seconds between two looks whether the server stops
_FIND = 5.0  # seconds between two searches for servers that have begun since


if TYPE_CHECKING:  # a framework is not needed to run this
    from starlette.responses import Response as _Response
else:
    _Response = object


class HasScope(Protocol):
    """A request of Starlette or FastAPI."""

    @property
    def scope(self) -> Scope: ...


def sse(run: Run[Any], request: HasScope | Scope) -> EventResponse:
    """The events of a run as a response: `return sse(hf.runs[run_id], request)`.

    It begins behind the event that the request's `Last-Event-ID`, or else its `?after=`, names. It ends when the run
    has ended, when the client leaves, and when the server begins to stop; a browser comes back then. A run that is not
    there is 404; one that has ended and was read to its end is 204, at which a browser stops asking. `request` may also
    be the scope of a bare ASGI call: what comes back is an ASGI app, and in a process that has loaded Starlette a
    Starlette `Response` too: type checkers know it as one, so annotate your endpoint with `-> Response`.
    """
    scope = request if isinstance(request, Mapping) else request.scope
    return _response_class()(run, _after(scope))


class EventResponse(_Response):
    """One reader's stream, as an ASGI app."""

    raw_headers: list[tuple[bytes, bytes]]

    def __init__(self, run: Run[Any], after: int) -> None:
        self._run = run
        self._after = after
        self.raw_headers = _encoded(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            row = await self._run.refresh()
        except NotFound as missing:
            await _answer(send, 404, {**problem_members(missing), "error": "not_found", "message": str(missing)})
            return
        if row.finalized_at is not None and self._after >= row.events:
            await _answer(send, 204, None)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            with server_stopping() as stopping:
                await self._write(send, gone, stopping)
        finally:
            gone.cancel()

    async def _write(self, send: Send, gone: asyncio.Future[None], stopping: asyncio.Future[None]) -> None:
        """Events as they come and comments between them, until the run has ended, the reader is gone, or the server
        stops."""
        await _part(send, BEGIN)
        events = self._run.stream(self._after)
        coming: asyncio.Future[Event] = asyncio.ensure_future(anext(events))
        quiet: asyncio.Future[None] = asyncio.ensure_future(self._run.clock.sleep(_KEEP_ALIVE))
        try:
            while not gone.done() and not stopping.done():
                waited: set[asyncio.Future[Any]] = {coming, quiet, gone, stopping}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    event = coming.result()
                    await _part(send, frame_of(event))
                    if isinstance(event, RunEnded):
                        break
                    coming = asyncio.ensure_future(anext(events))
                elif quiet.done():
                    await _part(send, STILL_HERE)
                if quiet.done():
                    quiet = asyncio.ensure_future(self._run.clock.sleep(_KEEP_ALIVE))
        except StopAsyncIteration:
            pass
        except HoldfastError as problem:  # the reader comes back and continues where it was
            level = logging.INFO if isinstance(problem, Unavailable) else logging.WARNING
            log.log(level, "a reader of run %s was cut off: %s", self._run.id, problem)
        finally:
            coming.cancel()
            quiet.cancel()
            await asyncio.gather(coming, quiet, return_exceptions=True)
            await events.aclose()
        with contextlib.suppress(OSError):  # the reader may have left just now
            if stopping.done():
                await _part(send, SERVER_STOPS)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@contextlib.contextmanager
def server_stopping() -> Iterator[asyncio.Future[None]]:
    """Around a stream: the future is done when uvicorn or Hypercorn begins to stop on this event loop.

    A server tells its app nothing until the last response has ended. So it is looked for among the tasks of the loop,
    however it was started, and asked; nothing of it is changed, and no signal is handled here.
    """
    loop = asyncio.get_running_loop()
    watch = _WATCHES.get(loop)
    if watch is None:
        watch = _WATCHES[loop] = _ServerWatch()
    stopping: asyncio.Future[None] = loop.create_future()
    watch.begin(stopping)
    try:
        yield stopping
    finally:
        watch.streams.discard(stopping)


class _ServerWatch:
    """Looks at the servers of one event loop while it has streams."""

    def __init__(self) -> None:
        self.streams: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self, stopping: asyncio.Future[None]) -> None:
        self.streams.add(stopping)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="streams end with their server")

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        servers, found_at = running_servers(), loop.time()
        while self.streams:
            if any(server.is_stopping() for server in servers):
                for stopping in self.streams:
                    if not stopping.done():
                        stopping.set_result(None)
            await asyncio.sleep(_LOOK)
            if loop.time() - found_at > _FIND:
                servers, found_at = running_servers(), loop.time()


_WATCHES: WeakKeyDictionary[asyncio.AbstractEventLoop, _ServerWatch] = WeakKeyDictionary()


def _response_class() -> Callable[[Run[Any], int], EventResponse]:
    """Ours, or one that is Starlette's too: a framework returns as they are only the responses it knows."""
    loaded: Any = sys.modules.get("starlette.responses")
    if loaded is None:
        return EventResponse

    class StarletteEventResponse(EventResponse, loaded.Response):  # type: ignore[misc]
        def __init__(self, run: Run[Any], after: int) -> None:
            loaded.Response.__init__(self, headers=_HEADERS)
            del self.headers["content-length"]
            headers = self.raw_headers  # what the framework or the program adds to them is sent
            EventResponse.__init__(self, run, after)
            self.raw_headers = headers

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            if self.background is not None:
                await self.background()

    return StarletteEventResponse


def _after(scope: Scope) -> int:
    """The number of the last event that the client has; 0 when it names none, so that nothing is missed."""
    headers = {name.lower(): value for name, value in scope.get("headers") or []}
    asked = parse_qs(bytes(scope.get("query_string") or b"").decode("latin-1")).get("after", [""])[-1]
    text = headers.get(b"last-event-id", b"").decode("latin-1").strip() or asked.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _answer(send: Send, status: int, body: object) -> None:
    text = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
    headers = {"content-length": str(len(text)), "cache-control": "no-store"}
    if body is not None:
        headers["content-type"] = "application/json"
    elif status == 204:
        del headers["content-length"]
    await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": text, "more_body": False})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
