"""Calls for code without an event loop: `hf.sync`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from holdfast.agents.api.session import Session, SessionOptions, new_session
from holdfast.agents.core import AgentsCore
from holdfast.kernel.database import drive
from holdfast.threads import refuse_on_a_loop

if TYPE_CHECKING:
    from holdfast.agents.mcp.tools import McpOptions, McpTools
    from holdfast.agents.tools import Tool

R = TypeVar("R")


class Sync:
    """`hf.sync`: the app for code without an event loop, on a thread of the app's own.

    `hf.sync(hf.sessions.list())` makes any call and returns what awaiting it returns.
    """

    def __init__(self, core: AgentsCore, mcp: Callable[[], McpTools]) -> None:
        self._core = core
        self._mcp = mcp

    def __call__(self, call: Awaitable[R]) -> R:
        """Make one call of the app: `hf.sync(hf.approve(id, by="ann"))`."""

        async def awaited() -> R:
            return await call

        coroutine = cast(Coroutine[Any, Any, R], call) if isinstance(call, Coroutine) else awaited()
        name = f".{call.__name__}(...)" if isinstance(call, CoroutineType) else ""
        return self._core.call(coroutine, "hf.sync", f"await …{name}")

    def signal(self, channel: str, payload: Any = None, *, key: str | None = None, tx: object | None = None) -> None:
        """`hf.signal`; with `tx` it uses that connection, on this thread."""
        if tx is None:
            self._core.call(self._core.signal(channel, payload, key), "hf.sync.signal", "await hf.signal(...)")
        else:
            drive(self._core.signal(channel, payload, key, self._core.intake(tx, sync=True)))

    def session(
        self, key: str | None = None, *, tx: object | None = None, **options: Unpack[SessionOptions]
    ) -> Session:
        """`await hf.session(…)`; with `tx` it uses that connection, on this thread."""
        if tx is None:
            refuse_on_a_loop("hf.sync.session", "await hf.session(...)")
            return self(new_session(self._core, key, **options))
        made = new_session(self._core, key, **options)
        return drive(made.open(self._core.intake(tx, sync=True), lasting=False))

    def mcp(self, name: str, **options: Unpack[McpOptions]) -> list[Tool[Any, Any]]:
        """`await hf.mcp(…)`, in a module that is imported for example. No connection stays open."""
        refuse_on_a_loop("hf.sync.mcp", "await hf.mcp(...)")
        return self._mcp().declare_sync(name, **options)

    def close(self) -> None:
        """Drain the worker and close the connections that calls without a loop have opened."""
        refuse_on_a_loop("hf.sync.close", "await asyncio.to_thread(hf.sync.close)")
        self._core.close_sync()
