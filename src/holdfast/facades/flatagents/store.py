"""Where a backend keeps its rows: an app on a Holdfast URL, with a thread of its own for calls without a loop."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from holdfast.app import Holdfast, core_of
from holdfast.kernel.database import Operation
from holdfast.kernel.drivers import dialect_of
from holdfast.kernel.drivers.sqlite_file import make_private_folder

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PATH = "./data/workers.sqlite"
MEMORY = "sqlite://:memory:"


class BackendAddress(NamedTuple):
    """Where another process finds a backend: `kind` is sqlite, memory, postgres or redis."""

    kind: str
    url: str


class Store:
    """One database. Backends that share a database share its store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._app = Holdfast(url, embedded=False)
        self.core = core_of(self._app)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        runtime = self.core.runtime()
        await runtime.open()
        return await runtime.transact(operation, *args, **kwargs)

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Make one call for code that does not await it."""
        return self.core.call(coroutine)

    def close(self) -> None:
        self.core.close_sync()

    async def aclose(self) -> None:
        """Close what the running event loop has opened."""
        await self._app.close()


class Stored:
    """A backend on a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store.url!r})"

    @property
    def address(self) -> BackendAddress:
        url = self._store.url
        return BackendAddress("memory" if url == MEMORY else dialect_of(url), url)

    def close(self) -> None:
        """Close what calls without a loop have opened."""
        self._store.close()

    async def aclose(self) -> None:
        await self._store.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a file, whose folder is made if it is not there."""
    text = os.fspath(path)
    if "://" in text:
        return text
    file = Path(text).absolute()
    make_private_folder(file.parent)
    return f"sqlite:///{file}"
