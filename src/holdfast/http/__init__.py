"""HTTP: `sse` streams a run from any ASGI program, `web` is the pages and the JSON API, mountable under any path.

`sse` loads no framework. `web` needs the extra `http`, and is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.access.principals import Principal
from holdfast.http.sse import EventResponse, sse

if TYPE_CHECKING:
    from holdfast.http.app import web

__all__ = ["EventResponse", "Principal", "sse", "web"]

if not TYPE_CHECKING:

    def __getattr__(name):
        if name != "web":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.http.app import web

        return web
