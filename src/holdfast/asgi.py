"""ASGI, as far as we speak it: the types of an app and of what it is called with, and the server that calls it.

A server tells its app nothing of its end until the last response has ended. So it is looked for and asked; nothing
of it is changed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class RunningServer(NamedTuple):
    """What a server knows of its end."""

    is_stopping: Callable[[], bool]
    is_hurried: Callable[[], bool] | None  # whether Ctrl-C was pressed again, if it remembers that


def running_servers() -> list[RunningServer]:
    """The servers that tasks of this event loop run, at whatever depth: uvicorn or Hypercorn."""
    uvicorn: Any = getattr(sys.modules.get("uvicorn.server"), "Server", ())
    hypercorn: Any = getattr(sys.modules.get("hypercorn.asyncio.worker_context"), "WorkerContext", ())
    found: list[RunningServer] = []
    for task in asyncio.all_tasks() if uvicorn or hypercorn else ():
        awaited: Any = task.get_coro()
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None)
            known = {} if frame is None else frame.f_locals
            if isinstance(server := known.get("self"), uvicorn):
                found.append(RunningServer(partial(_is_stopping, server), partial(_is_forced, server)))
                break
            if isinstance(context := known.get("context"), hypercorn):
                found.append(RunningServer(context.terminated.is_set, None))
                break
            awaited = getattr(awaited, "cr_await", None)
    return found


def _is_stopping(server: Any) -> bool:
    """Whether uvicorn was asked to stop, or has closed its sockets by itself, as after its last request."""
    listening = getattr(server, "servers", ())
    return bool(server.should_exit) or (bool(listening) and not any(each.is_serving() for each in listening))


def _is_forced(server: Any) -> bool:
    return bool(server.force_exit)
