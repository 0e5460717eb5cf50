"""Places: where a provider is, apart from the credentials that its URL may hold.

What is shown, stored or logged of a URL is its place. User info and query go to the provider and nowhere else.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit


class ProviderPlace(NamedTuple):
    """A URL in two halves: the one to show, and the credentials."""

    url: str  # without user info, query and fragment
    user: str = ""  # user info as the URL spells it
    query: str = ""

    @property
    def secret(self) -> str:
        """Which account pays, as far as the URL says so; "": it says nothing."""
        return f"{self.user}\n{self.query}" if self.user or self.query else ""

    @property
    def headers(self) -> Mapping[str, str]:
        """What says to the provider who asks, in place of user info in a URL, which others log."""
        if not self.user:
            return {}
        name, _, password = self.user.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}

    @property
    def parameters(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))


def place_of(url: str) -> ProviderPlace:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return ProviderPlace(urlunsplit((parts.scheme, host, parts.path, "", "")), user if at else "", parts.query)


class WithoutQueries(logging.Filter):
    """Keeps the query of a URL out of what an HTTP client logs of its requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        return True


def _shown(value: object) -> object:
    text = str(value)
    return place_of(text).url if text.startswith(("http://", "https://")) else value
