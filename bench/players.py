"""One process of a contender, from its start to its end.

It has a hard limit from the moment it starts. Whatever happens, `end` kills its process group, which it leads
itself; nothing else is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from bench.contenders import Contender
from bench.contenders.protocol import Order
from bench.environments import NotRun, clean_environment, python_for
from bench.places import ROOT

_SAID = 300


class Player:
    def __init__(self, who: str, command: list[str], *, limit: float) -> None:
        self._who = who
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._heard = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    @classmethod
    def of(cls, contender: Contender, verb: str, order: Order, *, limit: float, part: str = "") -> Player:
        """`part`: another module than the contender's own, for what only one contender can do, on asyncio's loop."""
        module = f"bench.contenders.{part or contender.module}"
        order = order if part else replace(order, loop=contender.loop)
        command = [str(python_for(contender)), "-m", module, verb, order.text()]
        return cls(f"{contender.name} {verb}", command, limit=limit)

    @property
    def pid(self) -> int:
        return self._process.pid

    def expect(self, event: str) -> dict[str, Any]:
        """Wait for the line that tells of `event`; `NotRun` when the process ends or the limit is reached."""
        while True:
            line = self._line()
            with contextlib.suppress(ValueError):  # a peer may print what it likes
                told = json.loads(line)
                if isinstance(told, dict) and told.get("event") == event:
                    return told

    def go(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `expect` or `check` will tell why
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def check(self) -> None:
        """`NotRun` if the process has failed or its time is over."""
        code = self._process.poll()
        if code:
            raise NotRun(f"{self._who} ended with {code}: {self._last_words()}")
        if time.monotonic() > self._deadline:
            raise NotRun(f"{self._who} did not end within its limit of {self._limit:.0f} s")

    def finish(self) -> None:
        """Wait until the process has ended by itself."""
        while self._process.poll() is None:
            self.check()
            time.sleep(0.005)
        self.check()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._heard:
            self.check()
            if select.select([self._process.stdout], [], [], 0.2)[0]:
                more = os.read(self._process.stdout.fileno(), 65_536)
                if not more:
                    self._process.wait()
                    self.check()
                    raise NotRun(f"{self._who} ended early: {self._last_words()}")
                self._heard += more
        line, self._heard = self._heard.split(b"\n", 1)
        return line

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:_SAID] if lines else "it said nothing"


@contextlib.contextmanager
def crew(players: Iterable[Player]) -> Iterator[list[Player]]:
    """Players that start one after the other and end together, also when one cannot be started."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(player) for player in players]


def play(contender: Contender, verb: str, order: Order, *, limit: float, part: str = "") -> None:
    """Run a verb to its end: `prepare`, which waits for nobody, or one that says `done`."""
    with Player.of(contender, verb, order, limit=limit, part=part) as player:
        player.go()
        player.finish()


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """Everything temporary, ours and the players', goes into one folder, and goes away with it."""
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            tempfile.tempdir, given = before
            del os.environ["TMPDIR"]
            if given is not None:
                os.environ["TMPDIR"] = given
