"""Denials: what the web refuses before the app is asked."""

from __future__ import annotations

from holdfast.errors import HoldfastError

_WHO = "Log in, or send a token of `holdfast tokens create` in the header Authorization, as Bearer."


class Denied(HoldfastError):
    """A request that the web itself refuses, with the status that says so."""

    def __init__(self, status: int, error: str, detail: str, remedy: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.error, self.remedy, self.retry_after = status, error, remedy, retry_after


def unknown() -> Denied:
    return Denied(401, "Unauthorized", "this needs a token or a login.", _WHO)


def forbidden(detail: str, remedy: str) -> Denied:
    return Denied(403, "Forbidden", detail, remedy)


def absent() -> Denied:
    """As what is not there: who may not see it does not learn that it is there."""
    return Denied(404, "NotFound", "there is nothing here.", "Look at openapi.json for what there is.")


def too_many(detail: str, seconds: int) -> Denied:
    return Denied(429, "TooMany", detail, f"Try again in {seconds} s.", retry_after=seconds)


def too_large(detail: str, remedy: str, status: int = 413) -> Denied:
    return Denied(status, "TooLarge", detail, remedy)


def too_slow() -> Denied:
    return Denied(408, "TooSlow", "the body did not come in time.", "Send it at once.")
