"""Forms: what a browser sends from one, as texts. Files are not taken."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from holdfast.errors import BadPayload, UsageError
from holdfast.kernel import codec

_MOST_FIELDS = 2_000
_SHORT = 64 * 1024  # bytes of a form that is read in the event loop


class Form(dict[str, str]):
    """The fields of a form; of one that was given more than once, the last. `all` has every value."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__(fields)
        self.fields = fields

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.fields if each == name]

    def text(self, name: str) -> str | None:
        """What was written there; None when nothing was."""
        return self.get(name, "").strip() or None

    def json(self, name: str) -> Any:
        """What was written there as JSON; None when nothing was."""
        written = self.text(name)
        return None if written is None else codec.decode_foreign(written, what=name)


async def filled(request: Request) -> Form:
    """The form of a request. Browsers send UTF-8."""
    try:
        body = await request.body()
        if len(body) <= _SHORT:
            fields = _fields(body)
        else:  # each character may be written as %41, and each is read by itself
            fields = await asyncio.to_thread(_fields, body)
    except ValueError:
        raise UsageError("this form cannot be read; send it again from its page.") from None
    if any("\x00" in part for pair in fields for part in pair):
        raise BadPayload("a text contains a NUL character.")
    return Form([(name, value.replace("\r\n", "\n")) for name, value in fields])


def _fields(body: bytes) -> list[tuple[str, str]]:
    return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)


Filled = Annotated[Form, Depends(filled)]
