"""What a browser may be made to send by another site, and what tells browsers not to do it.

A changing request needs `Sec-Fetch-Site: same-origin` or an Origin that equals its Host, unless a token comes without a
cookie. A request with neither header and no cookie is not from a browser: its token alone is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS: Mapping[str, str] = {
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
