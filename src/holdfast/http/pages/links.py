"""Links: the only place where an address of a page is written. Each begins where the app is mounted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

from starlette.requests import HTTPConnection


def links_of(connection: HTTPConnection) -> Links:
    return Links(str(connection.scope.get("root_path", "")))


class Links:
    """`url("/runs", id, "cancel", state="failed")` → `/ops/runs/…/cancel?state=failed`."""

    def __init__(self, mount: str) -> None:
        self.mount = "/" + mount.strip("/") if mount.strip("/") else ""
        self.root = quote(self.mount)

    def __call__(self, path: str, *parts: object, **query: Any) -> str:
        """An address below the mount. Parts are quoted; what is None is left out of the query."""
        place = "/".join([path.rstrip("/"), *(quote(str(each), safe="") for each in parts)])
        return self.root + (place or "/") + asked(query)

    def place_of(self, connection: HTTPConnection) -> str:
        """What is asked for, below the mount: a proxy may have stripped the mount, or kept it."""
        path = str(connection.scope["path"])
        return path.removeprefix(self.mount) or "/" if path == self.mount or path.startswith(f"{self.mount}/") else path


def is_below(place: str) -> bool:
    """Whether an address that came from outside is one below the mount, and leads to nowhere else."""
    if not place.startswith("/") or place.startswith(("//", "/\\")) or any(ord(each) <= 32 for each in place):
        return False
    return not {".", ".."} & set(unquote(place.partition("?")[0]).split("/"))


def asked(query: Mapping[str, Any]) -> str:
    """A query, with its question mark; nothing without one."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""
