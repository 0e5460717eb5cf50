"""MCP servers in tests: one that is started by whoever connects to it, and one that listens on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.apps import eventually
from tests.support.processes import free_port

SCRIPT = Path(__file__).with_name("mcp_server.py")


class Notes:
    """The server of `mcp_server.py`, and what it left in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, *words: str) -> list[str]:
        return [sys.executable, str(SCRIPT), str(self._folder), *words]

    @property
    def calls(self) -> list[str]:
        file = self._folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def started(self) -> bool:
        return (self._folder / "starts").exists()

    @property
    def starts(self) -> int:
        return len((self._folder / "starts").read_text())

    @property
    def pid(self) -> int:
        return int((self._folder / "pid").read_text())

    def kill(self) -> None:
        """Kill the server that was started last."""
        os.kill(self.pid, signal.SIGKILL)


class Listening(Notes):
    """The same over streamable HTTP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    async def start(self) -> None:
        self._process = subprocess.Popen(self.command(str(self._port)))  # noqa: ASYNC220  it returns at once
        await eventually(self._listens)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
