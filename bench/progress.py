"""What the terminal shows while something takes long: one line that changes, or plain lines in a log."""

from __future__ import annotations

import sys
import time


class Progress:
    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._live = sys.stderr.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """What is being done now."""
        self._shown = text
        if self._live:
            self._write(f"\r\x1b[K{self._clock()} {text}")
        else:
            self._write(f"{self._clock()} {text}\n")

    def count(self, done: int, of: int) -> None:
        """How far it is; only where the line can change."""
        if self._live:
            self._write(f"\r\x1b[K{self._clock()} {self._shown}: {done:,} of {of:,}")

    def say(self, text: str) -> None:
        """Something to be read later too."""
        self.clear()
        self._write(f"{text}\n")

    def clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._begun)
        return f"[{seconds // 60:02}:{seconds % 60:02}]"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
