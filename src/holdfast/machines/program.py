"""The program that plays a machine, for hooks that start processes of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Program(NamedTuple):
    url: str  # of the store that has the execution
    app: str | None = None  # MODULE:APP, if the program is known by that


playing: ContextVar[Program | None] = ContextVar("the program that plays a machine", default=None)
