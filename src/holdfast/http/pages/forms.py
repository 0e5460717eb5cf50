"""Forms: what a browser sends from one, as texts. Files are not taken."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from holdfast.errors import BadPayload, UsageError

_MOST_FIELDS = 2_000


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
        if written is None:
            return None
        try:
            return json.loads(written)
        except (ValueError, RecursionError) as problem:
            raise UsageError(f"{name} is not JSON: {problem}.") from None


async def filled(request: Request) -> Form:
    """The form of a request. Browsers send UTF-8."""
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise UsageError("this form cannot be read; send it again from its page.") from None
    if any("\x00" in part for pair in fields for part in pair):
        raise BadPayload("a text contains a NUL character.")
    return Form([(name, value.replace("\r\n", "\n")) for name, value in fields])


Filled = Annotated[Form, Depends(filled)]
