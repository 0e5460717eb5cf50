"""Where a database URL points, for people: without its password, however the URL is written."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

_UNREADABLE = "an address that cannot be read"


def server_of(url: str) -> str:
    """The server and the database that a postgresql:// URL names."""
    try:
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query))  # counts where the URL says nothing before its ?
    except ValueError:
        return _UNREADABLE
    if parts.netloc and "@" not in parts.netloc and "@" in url:  # a password with a bare / or #: its end is unknown
        return _UNREADABLE
    try:
        port = str(parts.port or "")
    except ValueError:
        port = ""
    host = parts.hostname or asked.get("host", "localhost")
    port = port or asked.get("port", "")
    database = parts.path.removeprefix("/") or asked.get("dbname", "")
    return f"{host}{port and f':{port}'}{database and f'/{database}'}"


def masked(text: str) -> str:
    """What somebody wrote for a URL, without what may be a password in it."""
    _, at, after = text.rpartition("@")
    return f"{at and '…@'}{after.partition('?')[0]}"


def without_password(url: str) -> str:
    """A URL as it was written, with asterisks for its password."""
    before, at, after = url.rpartition("@")
    scheme, slashes, user = before.partition("//")
    name, colon, _ = user.partition(":")
    shown = f"{scheme}{slashes}{name}{colon and ':***'}{at}{after}"
    return re.sub(r"(?<=password=)[^&]*", "***", shown)
