"""Everything that can go wrong in a model call, as one exception that says whose move it is.

The provider's own code decides the kind, the HTTP status only where there is no code: the same status 429 is a rate
limit that passes and a spend limit that waits for a person. An `error` event inside a stream is classed like a refusal.
A status 403 is one call that may not be made, unless its words say that the whole account is held.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from typing import Literal

from holdfast.errors import HoldfastError, RetryAdvice
from holdfast.text import Redactor

_LONGEST = 65_536  # characters of what a provider says that are looked at

Kind = Literal[
    "rate_limit",
    "overloaded",
    "server",
    "connect",
    "timeout",
    "cut",
    "malformed",
    "spend_limit",
    "auth",
    "permission",
    "bad_request",
    "context_window",
    "not_found",
]
Bought = Literal["no", "unknown"]

TRANSIENT: frozenset[Kind] = frozenset(
    ("rate_limit", "overloaded", "server", "connect", "timeout", "cut", "malformed"),
)

_CODES: Mapping[str, Kind] = {
    # error.details.error_code, the finer one
    "enforced_spend_limit_reached": "spend_limit",
    "organization_on_hold": "auth",
    "organization_type_not_supported": "auth",
    "ramp_limit_exceeded": "rate_limit",
    "request_body_too_large_after_decoding": "context_window",
    "file_expired": "bad_request",  # and not a model that is not there
    # error.type
    "rate_limit_error": "rate_limit",
    "overloaded_error": "overloaded",
    "api_error": "server",
    "timeout_error": "timeout",
    "authentication_error": "auth",
    "permission_error": "permission",
    "billing_error": "spend_limit",
    "not_found_error": "not_found",
    "request_too_large": "context_window",
}
_STATUSES: Mapping[int, Kind] = {
    401: "auth",
    402: "spend_limit",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "context_window",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
# The provider says these as plain invalid_request_error, so its words are all there is to go by.
_TOO_LONG = ("prompt is too long", "exceed context limit", "exceeds the context", "maximum context length")
_SPENT = ("credit balance is too low", "usage limits", "spend limit")
_HELD = re.compile(r"\b(organization|account)\b.{0,40}\b(disabled|suspended|deactivated|on hold|banned)\b")


class ModelFailure(HoldfastError):
    """A model call that did not return a complete answer.

    `kind` says what happened, `bought` whether it can have cost money: after "unknown" count the attempt as paid.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        bought: Bought = "unknown",
    ) -> None:
        message = Redactor().text(message[:_LONGEST])  # a provider may repeat the key, and this is stored and shown
        super().__init__(f"{kind}: {message}" + (f" (request {request_id})" if request_id else ""))
        self.kind: Kind = kind
        self.message = message
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.request_id = request_id
        self.bought: Bought = bought

    @property
    def transient(self) -> bool:
        """The same call may succeed later: retry by policy, not before `retry_after`."""
        return self.kind in TRANSIENT

    @property
    def retry(self) -> RetryAdvice:  # type: ignore[override]  # here it depends on the kind
        return "later" if self.transient else "never"

    @property
    def closes_lane(self) -> Literal["until", "person"] | None:
        """Whether this holds for every call of the credential: until `retry_after` has passed, or a person acts."""
        if self.kind in ("spend_limit", "auth"):
            return "person"
        return "until" if self.kind == "rate_limit" and self.retry_after is not None else None


def refused(status: int, body: object, headers: Mapping[str, str], *, streaming: bool = False) -> ModelFailure:
    """The failure that a provider's error says, in a response or, `streaming`, in an event after a 200.

    A definite refusal before the stream cost nothing; the cost of an error on the provider's side is unknown.
    """
    kind_of, code, message = _said(body)
    kind = _class(kind_of, code, message) or _by_status(status)
    definite = not streaming and (400 <= status < 500 or status == 529)
    return ModelFailure(
        kind,
        message or f"the provider answered with status {status}",
        status=status,
        code=code or kind_of,
        retry_after=retry_after(headers),
        request_id=headers.get("request-id") or _text(body, "request_id"),
        bought="no" if definite and status != 408 else "unknown",
    )


def _said(body: object) -> tuple[str | None, str | None, str]:
    """The error's type, its finer code and its words."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return None, None, body[:200] if isinstance(body, str) else ""
    return _text(error, "type"), _text(error.get("details"), "error_code"), _text(error, "message") or ""


def _text(holder: object, key: str) -> str | None:
    value = holder.get(key) if isinstance(holder, Mapping) else None
    return value if isinstance(value, str) else None


def _class(kind_of: str | None, code: str | None, message: str) -> Kind | None:
    words = message.lower()
    if code not in _CODES and kind_of in ("permission_error", "invalid_request_error") and _HELD.search(words):
        return "auth"
    for each in (code, kind_of):
        if each is not None and each in _CODES:
            return _CODES[each]
    if kind_of == "invalid_request_error":
        if any(phrase in words for phrase in _TOO_LONG):
            return "context_window"
        return "spend_limit" if any(phrase in words for phrase in _SPENT) else "bad_request"
    return None


def _by_status(status: int) -> Kind:
    return _STATUSES.get(status) or ("server" if status >= 500 else "bad_request")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: in milliseconds, in seconds, or as a date, which is read against the response's own."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    then, now = (email.utils.parsedate_tz(headers.get(name)) for name in ("retry-after", "date"))
    if then is None or now is None:
        return None
    return float(max(0, email.utils.mktime_tz(then) - email.utils.mktime_tz(now)))
