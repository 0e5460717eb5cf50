"""Forms: what a browser sends from one, as texts. Files are not taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from holdfast.agents.listing_rows import OpenCounts
from holdfast.errors import BadPayload, UsageError
from holdfast.http.api.jobs import ManyJobs
from holdfast.http.api.runs import ManyRuns
from holdfast.kernel import codec
from holdfast.values import Bulk

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


# Pairs: metadata as a form has them, a name and a value in each line.


def pairs_of(form: Form, name: str) -> dict[str, Any]:
    """`customer=42` in each line; a value that is JSON is that value, any other is text."""
    found: dict[str, Any] = {}
    for line in form.get(name, "").splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"metadata must be lines of name=value; got {line[:60]!r}.")
        found[key.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# Many at once: what a change of many runs or jobs would do, and what it did, as one page for both.


Many = TypeVar("Many", ManyRuns, ManyJobs)

_PAGES = 10  # of a thousand that one question looks at
_ENOUGH = 1_000  # that one press of a button changes


@dataclass(frozen=True, slots=True)
class BulkView:
    """`choice` says which were meant; `done` is false while a person is asked.

    `ids` are those that were ticked, and `below` what ends with them.
    """

    noun: Literal["run", "job"]
    verb: str
    found: Bulk
    choice: dict[str, str | None]
    done: bool
    reason: str = ""
    ids: tuple[str, ...] = ()
    below: OpenCounts | None = None


async def over_pages(change: Callable[[Many], Awaitable[Bulk]], many: Many) -> Bulk:
    """What a change does, or would do. Those of a group of failures may be far apart: it looks at several pages."""
    found = await change(many)
    for _ in range(_PAGES - 1 if many.error or many.message else 0):
        if found.next is None or found.changed >= _ENOUGH:
            break
        part = await change(many.model_copy(update={"after": found.next}))
        found = Bulk(
            matched=found.matched + part.matched,
            changed=found.changed + part.changed,
            refused={**found.refused, **part.refused},
            next=part.next,
            dry_run=part.dry_run,
        )
    return found
