"""Links: the only place where an address of a page is written. Each begins where the app is mounted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode


class Links:
    """`url("/runs", id, "cancel", state="failed")` → `/ops/runs/…/cancel?state=failed`."""

    def __init__(self, mount: str) -> None:
        self.mount = "/" + mount.strip("/") if mount.strip("/") else ""

    def __call__(self, path: str, *parts: object, **query: Any) -> str:
        """An address below the mount. Parts are quoted; what is None is left out of the query."""
        place = "/".join([path.rstrip("/"), *(quote(str(each), safe="") for each in parts)])
        return (self.mount + (place or "/")) + asked(query)

    def inside(self, place: str) -> bool:
        """Whether an address that came from outside leads to this app, and to nowhere else."""
        if not place.startswith("/") or place.startswith(("//", "/\\")) or any(ord(each) < 33 for each in place):
            return False
        return place == self.mount or place.startswith(f"{self.mount}/")


def asked(query: Mapping[str, Any]) -> str:
    """A query, with its question mark; nothing without one."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""
