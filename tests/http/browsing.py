"""What a browser does with pages: follow links, fill forms, look at what it may press."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from holdfast import Agent, Holdfast
from holdfast.access.principals import Principal, Role
from holdfast.http import web
from holdfast.http.pages.routes import PageRoute
from holdfast.http.pages.serving import ROUTES
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, ScriptedTurn, call, calls, last_user_text, say
from tests.http.client import Answer, Client

HTML = {"accept": "text/html,application/xhtml+xml"}
_LINKS = ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-href", "data-stream")


def browser(hf: Holdfast, role: Role = "admin", tenant: str | None = None, **options: Any) -> Client:
    """A browser of somebody whom the host app knows; each request is another's, so that none asks too often."""
    names = count()
    return Client(web(hf, who=lambda _: Principal(f"ann {next(names)}", role, tenant), **options), headers=dict(HTML))


async def send(client: Client, path: str, **fields: Any) -> Answer:
    """A form, as a browser sends it."""
    headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    return await client.call("POST", path, raw=urlencode(fields, doseq=True).encode(), headers=headers)


class Seen(HTMLParser):
    """What is in a page: its links, its forms, and whatever would run or style something inside of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.followed: list[str] = []  # of them, what a click or the page itself asks for
        self.loaded: list[str] = []  # of them, what comes without a click
        self.posts: list[str] = []
        self.inline: list[str] = []
        self.tags: list[str] = []
        self._text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.links += [given[name] for name in _LINKS if name in given]
        self.followed += [given[name] for name in ("hx-get", "data-href") if name in given]
        self.followed += [given["href"]] if tag == "a" and "href" in given else []
        self.loaded += [given[name] for name in ("src", "href", "hx-get") if name in given and tag != "a"]
        if tag == "form" and given.get("method", "get").lower() == "post":
            self.posts.append(given.get("action", ""))
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith(("on", "hx-on"))]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def text(self) -> str:
        return "".join(self._text)


def pages(method: str) -> list[PageRoute]:
    return [route for route in ROUTES if route.method == method]


def filled_in(path: str, value: str) -> str:
    """A path with one value for each of its parameters."""
    return "/".join(value if part.startswith("{") else part for part in path.split("/"))


async def crawl(client: Client, mount: str, first: str = "/", most: int = 120) -> Iterator[tuple[str, Answer]]:
    """Every page that links lead to from the first one; each link stays below the mount."""
    seen: dict[str, Answer] = {}
    todo = [mount + first]
    while todo and len(seen) < most:
        link = todo.pop(0)
        split = urlsplit(link)
        path = unquote(split.path)
        if path in seen or path.startswith((f"{mount}/api/", f"{mount}/assets/")):
            continue
        below = path.removeprefix(mount)
        answer = await client.call("GET", below, query=dict(parse_qsl(split.query)))
        seen[path] = answer
        if answer.headers.get("content-type", "").startswith("text/html"):
            found = Seen(answer.body.decode())
            outside = [each for each in found.links if not _stays(each, mount)]
            assert not outside, f"{below} leads to {outside}"
            todo += [each for each in found.followed if not each.startswith("#") and each not in todo]
    return iter(seen.items())


def _stays(link: str, mount: str) -> bool:
    return link.startswith("#") or (link.startswith("/") and not link.startswith("//") and _below(unquote(link), mount))


def _below(link: str, mount: str) -> bool:
    return link == mount or link.startswith((f"{mount}/", f"{mount}?"))


def treasurer(hf: Holdfast, words: str | None = "I pay it.") -> Agent[str]:
    """An agent whose tool needs approval. Without words of its own it repeats what it was asked."""

    @hf.tool(approve=True)
    def pay(amount: int, to: str) -> str:
        """Pay somebody."""
        return f"paid {amount} to {to}"

    def asks(messages: list[Wire]) -> ScriptedTurn:
        told = last_user_text(messages) if words is None else words
        return calls(say(told), call("pay", amount=5, to="Acme"))

    hf.script("treasurer", Script(asks, say("Paid.")))
    return hf.agent("treasurer", model="scripted:treasurer", tools=[pay])
