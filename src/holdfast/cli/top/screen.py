"""A terminal while a program draws on it: keys come one by one, frames replace each other, and all is put back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from holdfast.cli.logs import is_colored
from holdfast.cli.top.cells import Line, ansi

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # another screen, no cursor
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_TOGETHER, _NOW = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show the frame at once
_KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[Z": "back", "\x1b[D": "back", "\x1b[C": "tab", "\t": "tab"}


class Screen:
    """Draws frames; wakes the reader of keys and size changes."""

    def __init__(self) -> None:
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._colored = is_colored(sys.stdout)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        return shutil.get_terminal_size()

    def draw(self, lines: list[Line]) -> None:
        """One write, so that no half of a frame is ever seen."""
        rows = "\r\n".join(f"{ansi(line, colored=self._colored)}\x1b[K" for line in lines)
        sys.stdout.write(f"{_TOGETHER}\x1b[H{rows}\x1b[J{_NOW}")
        sys.stdout.flush()

    async def key(self, within: float | None) -> str:
        """The next key, or "" when the size changed or the time is over."""
        try:
            async with asyncio.timeout(within):
                return await self._keys.get()
        except TimeoutError:
            return ""

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take the terminal; give it back as it was, whatever happens."""
        loop = asyncio.get_running_loop()
        keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
        before = None if keyboard is None else termios.tcgetattr(keyboard)
        try:
            self._enter(keyboard)
            loop.add_signal_handler(signal.SIGWINCH, self._keys.put_nowait, "")
            loop.add_signal_handler(signal.SIGCONT, self._enter, keyboard)  # back from Ctrl-Z
            loop.add_signal_handler(signal.SIGTERM, self._keys.put_nowait, "q")
            loop.add_signal_handler(signal.SIGINT, self._keys.put_nowait, "q")
            if keyboard is not None:
                loop.add_reader(keyboard, self._read, keyboard)
            yield
        finally:
            for number in (signal.SIGWINCH, signal.SIGCONT, signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if keyboard is not None:
                loop.remove_reader(keyboard)
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before or [])
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _enter(self, keyboard: int | None) -> None:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        self._keys.put_nowait("")

    def _read(self, keyboard: int) -> None:
        given = os.read(keyboard, 64).decode(errors="replace")
        if not given:
            self._keys.put_nowait("q")  # the terminal is gone
        elif given.startswith("\x1b["):
            self._keys.put_nowait(_KEYS.get(given[:3], ""))
        else:
            for char in given:
                self._keys.put_nowait(_KEYS.get(char, char))
