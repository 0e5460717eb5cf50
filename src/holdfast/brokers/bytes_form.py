"""Bytes as JSON: a payload or a result that is bytes is stored as `{"$bytes": "<base64>"}`, and read as bytes again.

Only a value that is bytes as a whole has this form, so nothing is looked for inside of other values.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from holdfast.errors import BadPayload

_KEY = "$bytes"


def to_json(value: object, *, what: str) -> object:
    """What is stored; `BadPayload` for a value that would be mistaken for bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {_KEY: base64.b64encode(value).decode()}
    if isinstance(value, dict) and value.keys() == {_KEY}:
        raise BadPayload(
            f"{what} is an object whose only key is {_KEY!r}, which is how bytes are stored. Use another key."
        )
    return value


def from_json(value: Any) -> Any:
    """What was given; a text that is no base64 is left as it is."""
    if isinstance(value, dict) and value.keys() == {_KEY} and isinstance(value[_KEY], str):
        try:
            return base64.b64decode(value[_KEY], validate=True)
        except binascii.Error:
            return value
    return value
