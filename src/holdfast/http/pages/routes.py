"""Pages and actions, declared as data: a page shows a view through a template, an action changes something.

Each is what a route of the API is: who may open it, and under which name the audit has it, is said there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)


class PageRoute(NamedTuple):
    """One page or action. `name` is the route of the API that it is: it has the same rule."""

    method: str
    path: str
    function: Handler
    template: str
    name: str
    creates: bool = False


class Redirect:
    """Where to look after an action: a path below the mount with its parts, and what it asks for."""

    def __init__(self, path: str, *parts: str, **query: Any) -> None:
        self.path, self.parts, self.query = path, parts, query


class Pages:
    """The pages of one subject: `@pages.page("/runs/{id}", "run.html")` on a function that returns a view record.

    `like` names the route of the API that has the same rule; without it, the one with the same path.
    """

    def __init__(self) -> None:
        self.routes: list[PageRoute] = []

    def page(self, path: str, template: str, *, like: str | None = None) -> Callable[[H], H]:
        return partial(self._add, PageRoute("GET", path, _nothing, template, like or f"GET {path}"))

    def action(self, path: str, *, like: str | None = None, template: str = "") -> Callable[[H], H]:
        """A form is sent here. Its function returns where to `Redirect`, or a view for the template."""
        return partial(self._add, PageRoute("POST", path, _nothing, template, like or f"POST {path}"))

    def _add(self, route: PageRoute, function: H) -> H:
        self.routes.append(route._replace(function=function))
        return function


async def _nothing() -> None:
    return None
