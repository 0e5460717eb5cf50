"""What MCP servers send, within bounds: a command's standard output, and answers over HTTP.

The SDK reads a line or an answer of any length, parses JSON of any size and answers every question of a server. A
server that means harm could take all memory with that, or hold the event loop. Here a message has a length, one that
is long has so many values, and a server that asks faster than it listens is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import Unavailable
from holdfast.kernel import codec

if TYPE_CHECKING:
    from httpx2 import Response

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
    speaking = _Speaking(process, heard, said, ended)
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


class _Speaking:
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

    class Bounded(AsyncByteStream):
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
        response.stream = Bounded(response.stream)
