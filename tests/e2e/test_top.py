"""`holdfast top`: once as text, and live on a terminal. The frame itself is tested in tests/unit/test_top.py."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from holdfast import Holdfast, Retry
from holdfast.app import core_of
from holdfast.cli.top import BUCKETS
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.commands import PATIENCE, environment, holdfast, start
from tests.support.warm import WarmProcess

ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
async def shop_url(place: Place) -> str:
    """A store with a queue, a failure and no worker."""
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="fetch", queue="pages", retry=Retry(attempts=1))
    async def fetch() -> None:
        raise LookupError("no such page")

    async with hf:
        await fetch.enqueue()
        await core_of(hf).make_worker(Role(until="empty")).run()
        await fetch.options(delay="1h").enqueue()
    return place.url


def test_one_frame_as_text(shop_url: str) -> None:
    lines = holdfast("top", "--url", shop_url).lines
    assert lines[0].startswith("holdfast ")
    assert not any("\x1b" in line for line in lines)
    (pages,) = [line for line in lines if line.startswith("pages")]
    assert pages.split()[:5] == ["pages", "0", "0", "0", "1"]
    assert lines[-1].endswith("pages     fetch     LookupError: no such page")
    again = holdfast("top", "--once", "--url", shop_url).lines
    assert [line.split()[:5] for line in again[3:5]] == [line.split()[:5] for line in lines[3:5]]


def test_one_look_for_programs(shop_url: str) -> None:
    told = holdfast("top", "--url", shop_url, "--json").json
    (queue,) = told["queues"]
    assert (queue["name"], queue["later"], len(queue["history"])) == ("pages", 1, BUCKETS - 1)
    assert len(told["failures"]) == 1


class Terminal(NamedTuple):
    """A terminal with `top` on it, as the person before it has it."""

    process: WarmProcess
    handle: int

    def read_until(self, text: str) -> str:
        seen = ""
        while text not in seen:
            ready, _, _ = select.select([self.handle], [], [], PATIENCE)
            assert ready, seen
            try:
                seen += os.read(self.handle, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                assert text in seen, seen
        return seen

    def press(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)


@contextlib.contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = ("-m", "holdfast", "top", "--url", url, "--interval", "200ms")
    plain = {k: v for k, v in environment(TERM="xterm").items() if k not in ("COLUMNS", "LINES")}
    process = start(*command, stdin=theirs, stdout=theirs, stderr=theirs, env=plain, start_new_session=True)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_it_refreshes_heeds_keys_and_gives_the_terminal_back(shop_url: str) -> None:
    with terminal(shop_url) as screen:
        first = screen.read_until("every 0.2 s")
        assert ENTERED in first
        assert "LookupError: no such page" in first
        screen.read_until("every 0.2 s")  # again, by itself
        screen.press("p")
        screen.read_until("paused")
        screen.resize(120, 40)
        assert screen.read_until("paused").count("\r\n") >= 39
        screen.press("p")
        screen.read_until("every 0.2 s")
        screen.press("q")
        assert screen.read_until(LEFT).endswith(LEFT)
        assert screen.process.wait(PATIENCE) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_terminal_back(shop_url: str, number: signal.Signals) -> None:
    with terminal(shop_url) as screen:
        screen.read_until("every 0.2 s")
        screen.process.send_signal(number)
        screen.read_until(LEFT)
        assert screen.process.wait(PATIENCE) == 0
