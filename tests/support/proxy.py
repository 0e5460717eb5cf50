"""A TCP proxy in front of PostgreSQL that fails the way networks do: cut links, silent links, slow links, lost answers.

It runs on the test's own event loop, so a test that blocks the loop blocks the network.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

EXECUTE: Final = b"E\x00\x00\x00\x09\x00"  # the message that runs a prepared statement

# "Ready for query", outside of a transaction: whatever was asked is committed.
_COMMITTED: Final = b"Z\x00\x00\x00\x05I"
_CHUNK: Final = 65_536


class Link:
    """One client, one connection to the server, and what passes between them."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self._withheld: bytes | None = None  # of an answer that is to be lost
        self._brought = False  # the news whose commit is to be lost
        self.silent = False

    async def pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, request: bool) -> None:
        try:
            while data := await source.read(_CHUNK):
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay)
                if self.silent:
                    continue
                if not (self._asks(data) if request else self._answers(data)):
                    continue
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            self.cut()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    def _asks(self, data: bytes) -> bool:
        if self._proxy.forbidden is not None and self._proxy.forbidden in data:
            self._proxy.forbade.set()
            self.cut()
            return False
        if self._proxy.losing is not None and self._proxy.losing in data:
            self._proxy.losing = None
            self._withheld = b""
        if self._brought and b"COMMIT" in data:
            self._withheld = b""
        return True

    def _answers(self, data: bytes) -> bool:
        if self._proxy.losing_news is not None and self._proxy.losing_news in data:
            self._proxy.losing_news = None
            self._proxy.lost.set()
            self.cut()
            return False
        if self._proxy.losing_commit is not None and self._proxy.losing_commit in data:
            self._proxy.losing_commit = None
            self._brought = True
        if self._withheld is None:
            return True
        self._withheld += data
        if self._withheld.endswith(_COMMITTED):
            self._proxy.lost.set()
            self.cut()
        return False


class Proxy:
    """Between `start` and `close`, `url` leads through it to the server that the given URL names."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # of every client, also of one that has no link yet
        self.url = ""
        self.refusing = False  # new connections are cut at once
        self.delay = 0.0  # seconds that everything takes longer, each way
        self.forbidden: bytes | None = None  # a link on which these bytes are sent is cut
        self.forbade = asyncio.Event()
        self.losing: bytes | None = None
        self.losing_news: bytes | None = None
        self.losing_commit: bytes | None = None
        self.lost = asyncio.Event()
        self._port = 0  # any that is free

    def cut(self) -> None:
        """Reset every link."""
        for link in list(self._links):
            link.cut()

    def silence(self) -> None:
        """Let nothing more pass on the links there are; nobody is told. New ones work."""
        for link in self._links:
            link.silent = True

    def lose_answer(self, to: bytes) -> None:
        """When the next request that has these bytes is committed and answered, cut its link instead of answering."""
        self.lost.clear()
        self.losing = to

    def lose_news(self, of: bytes) -> None:
        """When the next answer has these bytes, cut its link instead of passing it on."""
        self.lost.clear()
        self.losing_news = of

    def lose_commit(self, of: bytes) -> None:
        """When the transaction whose next answer has these bytes is committed, cut its link instead of saying so."""
        self.lost.clear()
        self.losing_commit = of

    async def start(self) -> None:
        """Listen; again after `close`, at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = self._target._replace(netloc=f"{self._target.username}@127.0.0.1:{self._port}").geturl()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._server = None
        self.cut()
        await asyncio.sleep(0)  # whoever was accepted just now has a task then
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listens(self) -> bool:
        return self._server is not None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass_on(reader, writer)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._tasks.remove(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing or not self._listens():
            return
        answers, server = await asyncio.open_connection(self._target.hostname, self._target.port)
        link = Link(self, writer, server)
        if not self._listens():  # closed meanwhile
            link.cut()
            return
        self._links.add(link)
        try:
            await asyncio.gather(
                link.pass_on(reader, server, request=True), link.pass_on(answers, writer, request=False)
            )
        finally:
            self._links.remove(link)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
