"""Pairs: metadata as a form has them, a name and a value in each line."""

from __future__ import annotations

import json
from typing import Any

from holdfast.errors import UsageError
from holdfast.http.pages.forms import Form


def pairs_of(form: Form, name: str) -> dict[str, Any]:
    """`customer=42` in each line; a value that is JSON is that value, any other is text."""
    found: dict[str, Any] = {}
    for line in form.get(name, "").splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"metadata are written as name=value, one in a line, not {line[:60]!r}.")
        found[key.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
