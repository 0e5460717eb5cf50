"""Pages over HTTP: `?after=&limit=` in, `{"items", "next", "looked"}` out, with `?count=1` also `total`."""

from __future__ import annotations

from typing import Annotated, Generic, NamedTuple, TypedDict, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

T = TypeVar("T")

DEFAULT, MOST = 50, 1_000
MOST_COUNTED = 10_000
_LONGEST_CURSOR = 8_192


class PagePlace(TypedDict):
    """What every list takes."""

    after: str | None
    limit: int


class Paging(NamedTuple):
    after: str | None
    limit: int

    @property
    def place(self) -> PagePlace:
        return {"after": self.after, "limit": self.limit}


async def paging(
    after: Annotated[str | None, Query(max_length=_LONGEST_CURSOR, description="The `next` of a page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST, description="At most this many.")] = DEFAULT,
) -> Paging:
    return Paging(after, limit)


Paged = Annotated[Paging, Depends(paging)]
Count = Annotated[bool, Query(description="Also say how many there are on all pages, up to 10,000, as `total`.")]


class PageOf(BaseModel, Generic[T]):
    """A page, as openapi.json describes it."""

    items: list[T]
    next: str | None
    looked: int
    total: int | None = None
