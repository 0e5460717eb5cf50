"""The runtime database: what `connect_runtime_db` returns, a handle on a Holdfast app.

Functions without an event loop go over the app's own thread, so any number of threads may share one handle. Async code
uses the app itself, on its own loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.agents.api.agent import Agent
from holdfast.app import Holdfast, core_of
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.runs import Cursor, Runs
from holdfast.kernel.drivers.ad_hoc import Parameters

R = TypeVar("R")

AGENT = "universal_agent"
DEFAULT_MODEL = "claude-sonnet-5-5"

DefineAgent = Callable[[Holdfast], Agent[Any]]


class RuntimeDb:
    """A handle on a database with runs; `close` it, or use it in a `with` block."""

    def __init__(self, app: Holdfast, *, owned: bool, define: DefineAgent | None = None) -> None:
        self._app = app
        self._owned = owned
        self._define = define
        self._closed = False
        # An app of their own: the worker that this one embeds for agents must not play runs.
        self._queue = Holdfast(app.settings.url, settings=app.settings, embedded=False)
        self._runs = Runs(self._queue)
        core_of(app).closing.append(self._queue.close)

    @property
    def runs(self) -> Runs:
        """The runs, for async code."""
        self._require_open()
        return self._runs

    @property
    def queue(self) -> Holdfast:
        """The app whose jobs the runs are."""
        self._require_open()
        return self._queue

    def __repr__(self) -> str:
        return f"RuntimeDb({self._app.settings.url!r})"

    @property
    def app(self) -> Holdfast:
        self._require_open()
        return self._app

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"the connection to {self._app.settings.url} is closed: connect_runtime_db opens another.")

    @property
    def agent(self) -> Agent[Any]:
        """The agent that handles prompts: the app's own of this name, or one that is defined now."""
        known = core_of(self.app).defined.get(AGENT)
        if known is not None:
            return known  # type: ignore[no-any-return]
        return self._define(self.app) if self._define is not None else self.app.agent(AGENT, model=DEFAULT_MODEL)

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run one call for code that cannot await it."""
        return core_of(self.queue).call(coroutine)

    def execute(self, sql: str, parameters: Parameters = ()) -> Cursor:
        """Run a query that reads, as on a connection of `sqlite3`. Its rows have the names of their columns.

        What would change something is refused with `UsageError`: `queue_run` and the other functions do that.
        """
        return self.call(self.runs.execute(sql, parameters))

    def close(self) -> None:
        """Close what calls without a loop have opened. An app that you brought stays open otherwise."""
        if not self._closed:
            self._closed = True
            core_of(self._app).closing.remove(self._queue.close)
            core_of(self._queue).close_sync()
            if self._owned:
                core_of(self._app).close_sync()

    async def aclose(self) -> None:
        """Close what this event loop has opened too."""
        await self._queue.close()
        if self._owned:
            await self._app.close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _DefiningFlag:
    """How `install` says that agents are made."""

    define: DefineAgent | None = None


def define_agents_by(define: DefineAgent | None) -> None:
    _DefiningFlag.define = define


def defined_agent() -> DefineAgent | None:
    """What `install` was given."""
    return _DefiningFlag.define


def connect_runtime_db(path: str | os.PathLike[str] | Holdfast = "runtime.db") -> RuntimeDb:
    """Open a runtime database: a SQLite file, any URL that Holdfast takes, or an app that you have already."""
    if isinstance(path, Holdfast):
        return RuntimeDb(path, owned=False, define=_DefiningFlag.define)
    return RuntimeDb(Holdfast(url_of(path)), owned=True, define=_DefiningFlag.define)


def url_of(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if "://" in text else f"sqlite:///{Path(text).absolute()}"


def require(conn: object) -> RuntimeDb:
    """The handle that a function was given, or `UsageError`."""
    if isinstance(conn, RuntimeDb):
        return conn
    kind = f"{type(conn).__module__}.{type(conn).__qualname__}"
    raise UsageError(
        f"conn is what connect_runtime_db returns, not {kind}: a second library on the same file would break its locks."
    )
