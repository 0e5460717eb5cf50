"""Connections to MCP servers, through the official SDK, which nothing else imports but `pipes`.

One for each server, event loop and binding of the app, opened at first use and kept. One that broke is not used
again: the next call opens another. Calls that are under way on it end by themselves, so none is ever cut off because
of a neighbour.

When a server dies with several calls under way, one of them may be why, and nobody can tell which. Those that may be
asked again are, each on a connection of its own: whichever ends the server again fails alone, and the others are
answered.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import VERSION, MissingExtra, Unavailable
from holdfast.kernel import codec
from holdfast.text import shown

if TYPE_CHECKING:
    from httpx2 import Response
    from mcp.client.client import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as Listed

# What MCP servers send, within bounds: a command's standard output, and answers over HTTP.
#
# The SDK reads a line or an answer of any length, parses JSON of any size and answers every question of a server. A
# server that means harm could take all memory with that, or hold the event loop. Here a message has a length, one
# that
# is long has so many values, and a server that asks faster than it listens is left.


log = logging.getLogger("holdfast.mcp")

MESSAGE = 48 << 20  # bytes: a document of 32 MB as base64, and what stands around it
PARSED_ANYWAY = 1 << 20  # bytes: a longer message has at most `codec.MOST_VALUES` values
QUESTIONS = 1_000  # of a server that were not answered, because it does not read
NOTICES = 20_000  # notifications, one after the other: each costs a third of a millisecond
_CHUNK = 1 << 16
_LEAVING = 2.0  # seconds for a server to end by itself, and then to obey a signal

Ended = Callable[[str], None]


class MessageRefused(Unavailable):
    """What a server sent is not read, and the server is left."""


def check_message(text: bytes | bytearray) -> None:
    """`MessageRefused` for a message that would take too long to parse, or too much memory."""
    if len(text) > PARSED_ANYWAY and codec.is_wide(bytes(text)):
        raise MessageRefused(f"it sent a message of {len(text):,} bytes with more than {codec.MOST_VALUES:,} values")


class Lines:
    """Lines out of the chunks of a stream. Each byte is looked at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._part = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        *whole, rest = chunk.split(b"\n")
        lines = []
        for each in whole:
            self._part += each
            lines.append(self._taken())
        self._part += rest
        self._check()
        return lines

    def _taken(self) -> bytes:
        self._check()
        line, self._part = bytes(self._part), bytearray()
        return line

    def _check(self) -> None:
        if len(self._part) > self._most:
            raise MessageRefused(f"it sent a message of more than {self._most:,} bytes")


@asynccontextmanager
async def pipes(
    command: Sequence[str], env: dict[str, str], cwd: Path | None, errors: Any, ended: Ended
) -> AsyncIterator[Any]:
    """A server that is started here: the two streams of messages that the SDK wants. `ended` is told why it is left."""
    import anyio
    from mcp.client.stdio import get_default_environment
    from mcp.shared.message import SessionMessage

    process = await asyncio.create_subprocess_exec(
        *command,
        env=get_default_environment() | env,
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )
    heard, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, said = anyio.create_memory_object_stream[SessionMessage](0)
    speaking = _MessageExchange(process, heard, said, ended)
    tasks = [asyncio.create_task(each) for each in (speaking.read(), speaking.write())]
    try:
        yield reading, writing
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (heard, reading, writing, said):
            stream.close()
        await asyncio.shield(asyncio.create_task(_stop(process)))


class _MessageExchange:
    """Messages in both directions, until either side has enough."""

    def __init__(self, process: asyncio.subprocess.Process, heard: Any, said: Any, ended: Ended) -> None:
        self._process = process
        self._heard = heard
        self._said = said
        self._ended = ended
        self._noticed = 0  # notifications since anything else
        self._asked = 0  # questions of the server that wait for an answer

    async def read(self) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        assert self._process.stdout is not None
        lines = Lines(MESSAGE)
        async with self._heard:
            try:
                while chunk := await self._process.stdout.read(_CHUNK):
                    for line in lines.feed(chunk):
                        check_message(line)
                        try:
                            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        except ValueError:
                            if b'"jsonrpc"' in line[:_CHUNK]:  # somebody may wait for it
                                raise MessageRefused("it sent a message that cannot be read") from None
                            log.debug("a line of an MCP server is not a message")  # many print a greeting
                            continue
                        self._note(message)
                        await self._heard.send(SessionMessage(message))
            except MessageRefused as problem:
                self._ended(str(problem))

    async def write(self) -> None:
        from mcp_types import JSONRPCNotification, JSONRPCRequest

        assert self._process.stdin is not None
        async with self._said:
            try:
                async for each in self._said:
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self._process.stdin.write(text.encode() + b"\n")
                    await self._process.stdin.drain()
                    if not isinstance(each.message, JSONRPCRequest | JSONRPCNotification):
                        self._count(-1)
            except OSError:
                await self._heard.aclose()  # the calls under way fail, and do not wait for an answer

    def _note(self, message: Any) -> None:
        from mcp_types import JSONRPCNotification, JSONRPCRequest

        if isinstance(message, JSONRPCRequest):
            self._count(1)
        self._noticed = self._noticed + 1 if isinstance(message, JSONRPCNotification) else 0
        if self._noticed > NOTICES:
            raise MessageRefused(f"it sent more than {NOTICES:,} notifications and no answer")

    def _count(self, more: int) -> None:
        self._asked += more
        if self._asked > QUESTIONS:
            raise MessageRefused(f"it asked {QUESTIONS:,} questions and read no answer")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Let it end by itself, then with a signal, then at once; and what it has started with it."""
    assert process.stdin is not None
    process.stdin.close()
    draining = asyncio.create_task(_drain(process))
    try:
        for number in (signal.SIGTERM, signal.SIGKILL, None):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVING):
                    await process.wait()
            if process.returncode is not None:
                break
            if number is not None:
                _signal(process, number)
        _signal(process, signal.SIGKILL)
    finally:
        draining.cancel()
        process._transport.close()  # type: ignore[attr-defined]  # what it has started may hold the pipe


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _drain(process: asyncio.subprocess.Process) -> None:
    """A server that is writing does not read that it should end."""
    assert process.stdout is not None
    with suppress(OSError):
        while await process.stdout.read(_CHUNK):
            pass


async def bound_answer(response: Response) -> None:
    """For `httpx2`: the answer has a length, as it comes and unpacked, because nothing packed is asked for."""
    from httpx2 import AsyncByteStream, StreamError

    class BoundedStream(AsyncByteStream):
        def __init__(self, stream: AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > MESSAGE:
                    raise StreamError(f"it sent an answer of more than {MESSAGE:,} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise StreamError("it sent a packed answer, which was not asked for")
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):  # which the SDK bounds
        assert isinstance(response.stream, AsyncByteStream)
        response.stream = BoundedStream(response.stream)


_OPENING = 60.0  # seconds for a server to start and to answer for the first time
_CONNECT = 30.0
_APART = 4  # connections for one call each, at once
_REMEMBERED = 1_000
_MOST_TOOLS = 1_000  # of a server; no model takes as many
_KEY = "holdfast/idempotency-key"


class ConnectionLost(Unavailable):
    """A server went away during a call: whether it took effect is not known.

    `alone`: no other call was under way.
    """

    def __init__(self, server: str, why: str, *, alone: bool) -> None:
        hint = "no other call was active, so this one may have ended it" if alone else "other calls were active"
        super().__init__(f"the connection to MCP server {server!r} was lost: {why}; {hint}")
        self.alone = alone


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Where a server is: a command that speaks on its standard streams, or a URL."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # these two may hold secrets
    cwd: Path | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        return self.url or self.command[0]


class McpConnections:
    """The connections of one process."""

    def __init__(self, here: Callable[[], object]) -> None:
        """`here` is what the app has open on the running loop: see `core.LoopState`."""
        self._here = here
        self._opened: weakref.WeakKeyDictionary[object, _OpenConnections] = weakref.WeakKeyDictionary()
        self._suspects: dict[str, None] = {}  # keys of calls during which a server died, the oldest first

    async def list_tools(self, server: McpServer) -> list[Listed]:
        """Everything the server offers; `Unavailable` when it cannot be asked."""
        async with self._used(self._connection(server)) as client:
            try:
                async with asyncio.timeout(_OPENING):
                    return await _listed(server, client)
            except TimeoutError:
                raise _unreachable(server, f"it did not list its tools within {_OPENING:g}s") from None
            except ValueError as problem:  # of the SDK, which reads what it sent
                raise _unreachable(server, f"its list of tools is not one: {shown(str(problem)[:500])}") from None

    async def call_tool(
        self, server: McpServer, name: str, arguments: Mapping[str, Any], key: str | None, *, again: bool = False
    ) -> CallToolResult:
        """What the server answers; `ConnectionLost` when it went away, and whether it took effect is not known.

        `key`: the same for every attempt of one call, sent as metadata for servers that deduplicate. `again`: it may be
        asked again, which it is when others were under way: any of them may have ended the server.
        """
        asked = _ToolCall(name, dict(arguments), key)
        if not (again and key in self._suspects):
            try:
                async with self._used(self._connection(server)) as client:
                    return await asked.of(client)
            except ConnectionLost as lost:
                self._suspect(key if lost.alone else None)
                if lost.alone or not again:
                    raise
        return await self._call_apart(server, asked)

    async def _call_apart(self, server: McpServer, asked: _ToolCall) -> CallToolResult:
        """Ask on a connection that no other call uses, so that none is disturbed."""
        async with self._mine().apart:
            connection = _Connection(server)
            try:
                async with self._used(connection) as client:
                    return await asked.of(client)
            except ConnectionLost:
                self._suspect(asked.key)
                raise
            finally:
                self._let_go(connection)

    def _suspect(self, key: str | None) -> None:
        """Ask this call apart from others if it is tried again."""
        if key is not None:
            self._suspects[key] = None
        if len(self._suspects) > _REMEMBERED:
            del self._suspects[next(iter(self._suspects))]

    @asynccontextmanager
    async def _used(self, connection: _Connection) -> AsyncIterator[Client]:
        with connection.counted():
            client = await connection.client()
            try:
                yield client
            except Exception as problem:
                if not connection.broke(problem):
                    raise
                alone = connection.lost_with <= 1
                why = connection.left_because or _said(problem)
                raise ConnectionLost(connection.server.name, why, alone=alone) from None

    def _mine(self) -> _OpenConnections:
        return self._opened.setdefault(self._here(), _OpenConnections())

    def _connection(self, server: McpServer) -> _Connection:
        mine = self._mine().connections
        known = mine.get(server.name)
        if known is not None and known.server == server and not known.broken:
            return known
        if known is not None:
            self._let_go(known)
        mine[server.name] = made = _Connection(server)
        return made

    def _let_go(self, connection: _Connection) -> None:
        leaving, tasks = asyncio.create_task(connection.leave()), self._mine().leaving
        tasks.add(leaving)
        leaving.add_done_callback(tasks.discard)

    async def close(self) -> None:
        """Let go of what was opened here, and of nothing else: a test may have bound the app to another place."""
        mine = self._opened.pop(self._here(), _OpenConnections())
        await asyncio.gather(*(connection.close() for connection in mine.connections.values()), *mine.leaving)


@dataclass(slots=True)
class _OpenConnections:
    """What is open in one place."""

    connections: dict[str, _Connection] = field(default_factory=dict)
    leaving: set[asyncio.Task[None]] = field(default_factory=set)
    apart: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_APART))


class _ToolCall(NamedTuple):
    """One call, however often it is asked."""

    name: str
    arguments: dict[str, Any]
    key: str | None

    async def of(self, client: Client) -> CallToolResult:
        meta: Any = {} if self.key is None else {"meta": {_KEY: self.key}}
        return await client.call_tool(self.name, self.arguments, **meta)


class _Connection:
    """One connection. A task of its own holds it open, for the SDK wants to be left by the task that entered."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = 0
        self.lost_with = 0  # calls that were under way when it ended
        self._ended = False
        self.left_because = ""  # what the server did that ended it
        self._task = asyncio.create_task(self._keep(), name=f"MCP server {server.name}")

    @property
    def broken(self) -> bool:
        return self._ended or self._task.done()

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def client(self) -> Client:
        """The client, once it is there. Who gives up waiting does not keep others from getting it."""
        return await asyncio.shield(self._opened)

    def broke(self, problem: Exception) -> bool:
        """Whether this failure of a call is one of the connection; if so, no other call uses it."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST

        # INVALID_REQUEST is how the SDK says that a server no longer knows our session.
        if isinstance(problem, OSError) or (
            isinstance(problem, MCPError) and problem.code in (CONNECTION_CLOSED, INVALID_REQUEST)
        ):
            self._end()
        return self.broken

    async def leave(self) -> None:
        """Close once the calls under way have ended."""
        await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        self._leave.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait({self._task})

    def _on_leave(self, why: str) -> None:
        self.left_because = why
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended, self.lost_with = True, self._calls

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(_OPENING):
                    client = await _opened(self.server, stack, self._end, self._on_leave)
                if not self._opened.done():
                    self._opened.set_result(client)
                await self._leave.wait()
        except MissingExtra as problem:
            self._fail(problem)
        except TimeoutError:
            self._fail(_unreachable(self.server, self.left_because or f"no answer within {_OPENING:g}s"))
        except asyncio.CancelledError:
            self._fail(_unreachable(self.server, "it was closed"))
            raise
        except Exception as problem:  # noqa: BLE001  whatever ends a connection, the SDK fails its calls
            self._fail(_unreachable(self.server, self.left_because or _said(problem)))
        finally:
            self._end()

    def _fail(self, problem: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(problem)
            self._opened.exception()  # nobody may be waiting any more, and that is not a fault


def _unreachable(server: McpServer, why: str) -> Unavailable:
    return Unavailable(f"MCP server {server.name!r} ({server.place}) cannot be reached: {why}")


async def _listed(server: McpServer, client: Client) -> list[Listed]:
    """All tools of a server, page after page."""
    found: list[Listed] = []
    cursor: str | None = None
    size = 0
    for _ in range(_MOST_TOOLS):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        size += sum(len(each.model_dump_json()) for each in page.tools)
        cursor = page.next_cursor
        if not cursor:
            return found
        if len(found) > _MOST_TOOLS or size > MESSAGE:
            break
    raise _unreachable(server, f"its list of tools does not end after {len(found):,} of them")


async def _opened(
    server: McpServer, stack: AsyncExitStack, ended: Callable[[], None], left: Callable[[str], None]
) -> Client:
    await asyncio.to_thread(_import)  # a second, in which the event loop must live
    from mcp.client.client import Client
    from mcp_types import Implementation

    transport = await _http(server, stack) if server.url else _stdio(server, left)
    about = Implementation(name="holdfast", version=VERSION)
    client = await stack.enter_async_context(Client(_watched(transport, ended), client_info=about, cache=None))
    # The SDK compares results with the server's schema on the event loop, which a pattern in it could hold for ever.
    setattr(client.session, "validate_tool_result", _unchecked)  # noqa: B010  a method of the SDK's
    return client


async def _unchecked(name: str, result: Any) -> None:
    """What a tool answers is for the model, whatever the server says of its shape."""


def _import() -> None:
    try:
        importlib.import_module("mcp.client.client")
    except ModuleNotFoundError as missing:
        raise MissingExtra("mcp", "a tool of an MCP server") from missing


def _stdio(server: McpServer, left: Callable[[str], None]) -> AbstractAsyncContextManager[Any]:
    return pipes(server.command, dict(server.env), server.cwd, sys.__stderr__ or sys.stderr, left)


async def _http(server: McpServer, stack: AsyncExitStack) -> AbstractAsyncContextManager[Any]:
    from httpx2 import AsyncClient, Timeout
    from mcp.client.streamable_http import streamable_http_client

    # How long an answer may take is the tool's own timeout.
    patience = Timeout(_CONNECT, read=None)
    headers, hooks = {"accept-encoding": "identity", **server.headers}, {"response": [bound_answer]}
    http = await stack.enter_async_context(AsyncClient(headers=headers, timeout=patience, event_hooks=hooks))
    return streamable_http_client(server.url, http_client=http)


@asynccontextmanager
async def _watched(transport: AbstractAsyncContextManager[Any], ended: Callable[[], None]) -> AsyncIterator[Any]:
    """The same transport; says when the other side has ended, which the SDK tells nobody but the next call."""
    async with transport as (reading, writing):
        yield _StreamWithEnd(reading, ended), writing


class _StreamWithEnd:
    """A stream of messages that says when it ends; anything else about it is the SDK's."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except Exception:
            self._on_end()
            raise

    def __aiter__(self) -> _StreamWithEnd:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except Exception:
            self._on_end()
            raise

    async def __aenter__(self) -> _StreamWithEnd:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> Any:
        return await self._stream.__aexit__(*problem)


def _said(problem: BaseException) -> str:
    """What is behind a failure, in one line: the SDK's come in groups."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return f"{type(problem).__name__}: {problem}".removesuffix(": ")
