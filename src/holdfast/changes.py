"""Changes that people make: those of a program that no worker runs are written into the audit, with the user's name.

What a worker's handler does is work, and is not written. Neither is what is written already: by the web, by a command,
or because the program says by whom (`hf.access.audit.recording`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Recorder = Callable[[str, str, str], AbstractAsyncContextManager[None]]  # of an action, its subject, and by whom

_NARROWING = ("queue", "kind", "tenant", "agent", "session", "state")
_noted: ContextVar[bool] = ContextVar("holdfast_changes_noted", default=True)


class RecordingApp(Protocol):
    def recording(self, action: str, subject: str, by: str) -> AbstractAsyncContextManager[None]: ...


class Changer(Protocol):
    """Whatever reaches the store through an app."""

    @property
    def _app(self) -> RecordingApp: ...


S = TypeVar("S", bound=Changer)


def are_noted() -> bool:
    """Whether a change that the present code makes is still to be written into the audit."""
    return _noted.get()


@contextmanager
def unnoted() -> Iterator[None]:
    """Around code whose changes are not written into the audit, or are written already."""
    before = _noted.get()
    _noted.set(False)
    try:
        yield
    finally:
        _noted.set(before)


def changing(
    action: str,
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, R]]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]
]:
    """Mark a method that changes what people care about: its object, or what its first argument says."""

    def marked(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @functools.wraps(method)
        async def change(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not are_noted() or kwargs.get("dry_run"):
                return await method(self, *args, **kwargs)
            by = kwargs.get("by")
            async with self._app.recording(action, _subject(self, args, kwargs), by if isinstance(by, str) else ""):
                return await method(self, *args, **kwargs)

        return change

    return marked


def _subject(owner: object, args: Sequence[object], given: Mapping[str, object]) -> str:
    own = getattr(owner, "id", None)
    if isinstance(own, str):
        return own
    first = args[0] if args else given.get("id", given.get("name"))
    if first is not None:
        return str(getattr(first, "id", first))
    return " ".join(f"{name}={given[name]}" for name in _NARROWING if given.get(name) is not None)
