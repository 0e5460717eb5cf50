"""Denials: what the web refuses before the app is asked."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.text import plural

_WHO = "Log in, or send a token of `holdfast tokens create` in the header Authorization, as Bearer."


class RequestDenied(HoldfastError):
    """A request that the web itself refuses, with the status that says so."""

    def __init__(self, status: int, error: str, detail: str, remedy: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.error, self.remedy, self.retry_after = status, error, remedy, retry_after


def unknown() -> RequestDenied:
    return RequestDenied(401, "Unauthorized", "this needs a token or a login.", _WHO)


def forbidden(detail: str, remedy: str) -> RequestDenied:
    return RequestDenied(403, "Forbidden", detail, remedy)


def absent() -> RequestDenied:
    """As what is not there: who may not see it does not learn that it is there."""
    return RequestDenied(404, "NotFound", "there is nothing here.", "Look at openapi.json for what there is.")


def too_many(detail: str, seconds: int) -> RequestDenied:
    return RequestDenied(429, "TooManyParts", detail, f"Try again in {seconds} s.", retry_after=seconds)


def too_large(detail: str, remedy: str, status: int = 413) -> RequestDenied:
    return RequestDenied(status, "TooLarge", detail, remedy)


def too_slow() -> RequestDenied:
    return RequestDenied(408, "TooSlow", "the body did not come in time.", "Send it at once.")


# What a browser may be made to send by another site, and what tells browsers not to do it.
#
# A changing request needs `Sec-Fetch-Site: same-origin` or an Origin that equals its Host, unless a token comes
# without a
# cookie. A request with neither header and no cookie is not from a browser: its token alone is judged.


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
BROWSER_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; sandbox allow-same-origin"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_forged(headers: Mapping[str, str], *, bearer: bool) -> bool:
    """Whether another site may have made a browser send this changing request."""
    cookie = "cookie" in headers
    if bearer and not cookie:
        return False
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site != "same-origin"
    if origin is not None:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower() or origin == "null"
    return cookie


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    name = header.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


# Caps: how much one principal, one address and one process may ask for at once.


BODY = 8 * 1024 * 1024
HEADERS = 64 * 1024
HEADER_SECONDS = 10.0  # within which headers must be here, with `holdfast serve`
BODY_SECONDS = 30.0  # within which a body must be here: who drips it holds a connection for no longer
TAKE_SECONDS = 10.0  # within which a client must take the next `TAKE_BYTES` that wait for it, with `holdfast serve`
TAKE_BYTES = 10_000
STREAMS_EACH, STREAMS_ALL = 20, 2_000
_REMEMBERED = 10_000  # principals or addresses


class RateCap:
    """So many at once, and so many a second from then on, for each name."""

    def __init__(self, clock: Clock, *, burst: float, a_second: float, what: str) -> None:
        self._clock = clock
        self._burst, self._pace, self._what = burst, a_second, what
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """`RequestDenied` when this name has had its share."""
        now = self._clock.monotonic()
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._pace)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        if left < 1:
            raise too_many(f"too many {self._what} from {name}.", max(1, round((1 - left) / self._pace)))


class StreamCounts:
    """The streams that are open in this process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Around a stream; `RequestDenied` when this principal, or the process, has too many."""
        if self._open[name] >= STREAMS_EACH or self.open >= STREAMS_ALL:
            raise too_many(f"{name} has {plural(self._open[name], 'stream')} open, and the process {self.open}.", 5)
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
