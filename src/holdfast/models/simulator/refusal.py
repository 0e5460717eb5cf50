"""A refusal, as the provider words it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestRefused(Exception):
    """The request is not accepted, and costs nothing."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.error: dict[str, Any] = {"type": type, "message": message}
        if code is not None:
            self.error["details"] = {"error_code": code}


def need(true: bool, message: str) -> None:
    """Refuse with this message unless `true`."""
    if not true:
        raise RequestRefused(message)
