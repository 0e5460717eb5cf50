"""Which run the code that runs now handles.

A worker sets it around its handler. Inside, a gateway takes the worker's database, and names each turn by the run and
by how often that prompt was asked: when another worker takes the run over, its turns are found again, not asked again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from holdfast.facades.universal_agent.runtime_db import RuntimeDb


@dataclass
class HandlerAttempt:
    """One attempt of one run."""

    runtime: RuntimeDb
    job: str
    max_iterations: int | None = None
    _asked: Counter[str] = field(default_factory=Counter)

    def turn_id(self, session_id: str, prompt: str) -> str:
        asked = hashlib.sha256(f"{session_id}\0{prompt}".encode()).hexdigest()[:32]
        self._asked[asked] += 1
        return f"{self.job}/{asked}/{self._asked[asked]}"


_current: ContextVar[HandlerAttempt | None] = ContextVar("holdfast_universal_agent_handling", default=None)


def current() -> HandlerAttempt | None:
    return _current.get()


@contextmanager
def handled(handling: HandlerAttempt) -> Iterator[None]:
    """Around a handler."""
    before = _current.set(handling)
    try:
        yield
    finally:
        _current.reset(before)
