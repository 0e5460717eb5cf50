"""Pages over HTTP: `?after=&limit=` in, `{"items", "next", "looked"}` out, with `?count=1` also `total`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Generic, NamedTuple, TypedDict, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

from holdfast.values import Page

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


class PartOfPage(Page[T]):
    """What somebody sees of a page. It does not tell how much the others have: `looked` is what is shown."""

    def __init__(self, shown: Iterable[T], page: Page[T]) -> None:
        super().__init__(shown, next=page.next)
        self.whole = page.looked  # how many were looked at, for who continues


class PageOf(BaseModel, Generic[T]):
    """A page, as openapi.json describes it."""

    items: list[T]
    next: str | None
    looked: int
    total: int | None = None
