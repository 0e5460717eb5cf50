"""Routes: what a noun answers, declared as data, so that one place composes and guards them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

from holdfast.values import Page

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)


API = "/api/v1"


class Endpoint(NamedTuple):
    """One method of one path. `creates`: it takes an Idempotency-Key, and answers `made`.

    `first` is how many items of a page are read before their size is known; a list that is read whole is read once.
    `whole` is where the records of an answer that has no bounds of its own are whole: "/runs/{id}".
    """

    noun: str
    method: str
    path: str
    function: Handler
    creates: bool = False
    root: str = API
    whole: str = ""
    made: int = 201
    first: int = 10

    @property
    def name(self) -> str:
        """How the table of roles calls it: routes of the API by their path below it."""
        return f"{self.method} {self.path if self.root == API else self.place}"

    @property
    def place(self) -> str:
        """Its path, below where the app is mounted."""
        return self.root + self.path


class Routes:
    """The routes of one noun: `@routes.get("/runs/{id}")`."""

    def __init__(self, noun: str, root: str = API) -> None:
        self.noun = noun
        self.root = root
        self.endpoints: list[Endpoint] = []

    def get(self, path: str, *, whole: str = "", first: int = 10) -> Callable[[H], H]:
        return partial(self._add, "GET", path, False, whole=whole, first=first)

    def post(self, path: str, *, creates: bool = False, made: int = 201) -> Callable[[H], H]:
        return partial(self._add, "POST", path, creates, made=made)

    def put(self, path: str) -> Callable[[H], H]:
        return partial(self._add, "PUT", path, False)

    def patch(self, path: str) -> Callable[[H], H]:
        return partial(self._add, "PATCH", path, False)

    def delete(self, path: str) -> Callable[[H], H]:
        return partial(self._add, "DELETE", path, False)

    def _add(self, method: str, path: str, creates: bool, function: H, **more: Any) -> H:
        self.endpoints.append(Endpoint(self.noun, method, path, function, creates, self.root, **more))
        return function


# Pages over HTTP: `?after=&limit=` in, `{"items", "next", "looked"}` out, with `?count=1` also `total`.


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
