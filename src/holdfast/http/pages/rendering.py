"""Rendering: a view becomes HTML through its template. Every text is escaped unless a template says what it is.

The only module that knows the template engine.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from holdfast.http.pages import words
from holdfast.http.pages.charts import gauge, share, stacked
from holdfast.http.security.checks import absent
from holdfast.text import escaped, escaped_lines, obeyed_escaped, plural, shell_word
from holdfast.values import as_json, iso

# Assets: the files that pages load, by the hash of all of them, so that a browser keeps them for ever.


_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PATH = "/assets/{version}/{name}"


@cache
def stored() -> dict[str, bytes]:
    """The files by name."""
    folder = files("holdfast.http.assets")
    return {each.name: each.read_bytes() for each in folder.iterdir() if _kind(each.name) is not None}


@cache
def version() -> str:
    """Changes with any of the files."""
    digest = hashlib.sha256()
    for name, content in sorted(stored().items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


async def serve_asset(request: Request) -> Response:
    """A file. Who asks with the hash of another release gets this one's, and does not keep it."""
    name = request.path_params["name"]
    content = stored().get(name)
    if content is None:
        raise absent()
    current = request.path_params["version"] == version()
    kept = "public, max-age=31536000, immutable" if current else "no-cache"
    headers = {"cache-control": kept, "etag": f'"{version()}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_kind(name))


def _kind(name: str) -> str | None:
    return next((kind for ending, kind in _TYPES.items() if name.endswith(ending)), None)


# Markdown: what a model wrote, as HTML. Raw HTML and images in it are text. Pure.
#
# Reading a character of markup takes a hundred times as long as reading a letter. So a message and a page have a
# limit of
# such characters, and what is beyond it is shown as it was written. What makes more of a text than is written in it,
# as
# references do, is not read.


# Characters of markup, and cells of tables. At worst, which is lines that continue twenty quotes, reading takes 0.12 s
# for a message and 0.5 s for a page, as measured; the HTML is six times as long as the text.
IN_MESSAGE, ON_PAGE = 3_000, 12_000
_MARKUP = str.maketrans("", "", "![]()<>*_~`&\\|#:-+\n")


class Prose:
    """The messages of one page, and how much markup may still be read there."""

    def __init__(self) -> None:
        self._left = ON_PAGE

    def html(self, text: str) -> Markup:
        marks = len(text) - len(text.translate(_MARKUP)) + _most_cells(text)
        if marks > min(self._left, IN_MESSAGE):
            return Markup('<div class="said">{}</div>').format(text)
        self._left -= marks
        return Markup(as_html(text))


def _most_cells(text: str) -> int:
    """More cells than its tables can have: a row has as many as the head, however little is written in it."""
    count = rows = widest = 0
    for line in text.replace("\r", "\n").split("\n"):
        if line.strip(" \t"):
            rows, widest = rows + 1, max(widest, line.count("|"))
        else:
            count, rows, widest = count + (rows * (widest + 1) if widest else 0), 0, 0
    return count + (rows * (widest + 1) if widest else 0)


def as_html(text: str) -> str:
    """Safe HTML: every tag in it is one of ours, and a link leads to http, https or mailto."""
    return str(_reader().render(text))


@cache
def _reader() -> MarkdownIt:
    reader = _Reader("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    reader.disable(["image", "html_block", "html_inline"])
    # Each use of a reference repeats its address. A heading above a line of = reads all that follows, for each quote.
    reader.disable(["reference", "lheading"])
    reader.add_render_rule("link_open", _link)
    return reader


def _link(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A link of a model's leads away: it tells nobody from where."""
    tokens[index].attrSet("rel", "noreferrer nofollow")
    return str(self.renderToken(tokens, index, options, env))


class _Reader(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802  theirs
        return url.strip().lower().startswith(("https://", "http://", "mailto:"))


def render(template: str, values: dict[str, Any]) -> str:
    """The page. `values` has `url`, `now`, `may` and what the view says."""
    return _environment().get_template(template).render({**values, "prose": Prose()})


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("holdfast.http.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    made.filters |= {
        "ago": _ago,
        "clock": words.clock,
        "count": words.count,
        "plural": plural,
        "error_line": error_line,
        "error_lines": error_lines,
        "iso": lambda at: "" if at is None else iso(at),
        "gauge": gauge,
        "json_line": json_line,
        "json_text": json_text,
        "json_whole": json_whole,
        "line": line,
        "lines": lines,
        "markdown": _markdown,
        "money": words.money,
        "prompt_line": prompt_line,
        "share": share,
        "shell": shell,
        "shell_address": shell_address,
        "shell_body": shell_body,
        "json_string": json_string,
        "short": words.short,
        "span": words.span,
        "stacked": stacked,
        "state": words.state,
    }
    made.globals |= {"asset": _asset}
    return made


def _harmless(value: Any) -> Any:
    """A text that no filter has cleaned, a name in an attribute for example."""
    return obeyed_escaped(value) if type(value) is str else value


@pass_context
def _ago(context: Context, at: datetime | None) -> str:
    return words.ago(at, context["now"])


@pass_context
def _asset(context: Context, name: str) -> str:
    address: str = context["url"]("/assets", version(), name)
    return address


def line(text: object, longest: int = 300) -> str:
    """One line that cannot change the order in which the page is read."""
    return escaped(words.cut(_plain(text), longest))


def lines(text: object, longest: int = words.LONGEST_TEXT) -> str:
    """Text of several lines, each of which cannot change the order in which the page is read."""
    return escaped_lines(words.cut(_plain(text), longest))


def shell(name: str) -> str:
    """A name as the last argument of a command of ours that a person copies into a shell."""
    return shell_word(line(name, 200))


def json_string(name: str) -> str:
    """A name as text in the JSON of a command."""
    return json.dumps(name, ensure_ascii=False)


def shell_body(body: str) -> str:
    """The body of a request as a word of a command."""
    return shlex.quote(line(body, 1_500))


def shell_address(route: str) -> str:
    """An address of this server as a word of a command: what is after the variable is text, whatever it contains."""
    command_text = line(route, 1_500)
    return f'"$WEB{command_text}"' if not set(command_text) & set('"$`!\\') else f'"$WEB"{shlex.quote(command_text)}'


def json_text(value: object, longest: int = words.LONGEST_TEXT) -> str:
    """A value as JSON, indented."""
    text = value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False, indent=2, default=str)
    return lines(text, longest)


def json_line(value: object, longest: int = 120) -> str:
    """A value as JSON, on one line."""
    text = value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False, default=str)
    return line(text, longest)


def json_whole(value: object) -> str:
    """A value as JSON that a person may change: none of it is cut off, and what cannot be seen is escaped."""
    text = json.dumps(as_json(value), ensure_ascii=False, indent=2, default=str)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def prompt_line(blocks: Any, longest: int = 120) -> str:
    """What a run was asked, on one line."""
    if not isinstance(blocks, list):
        return json_line(blocks, longest)
    words = " ".join(str(each.get("text", "")) for each in blocks if isinstance(each, dict))
    return line(" ".join(words[: 100 * longest].split()), longest)


def error_line(error: Any, longest: int = 160) -> str:
    """The first line of what went wrong."""
    return line(error_lines(error).partition("\n")[0], longest)


def error_lines(error: Any) -> str:
    """What went wrong, as it is stored: a type and a message, or anything."""
    if isinstance(error, dict) and "message" in error:
        named = str(error.get("type") or error.get("error") or "")
        trace = str(error.get("traceback") or "")
        return lines(f"{named}: {error['message']}".removeprefix(": ") + (f"\n{trace}" if trace else ""))
    return lines(error) if isinstance(error, str) else json_text(error)


@pass_context
def _markdown(context: Context, text: object) -> Markup:
    prose: Prose = context["prose"]
    return prose.html(lines(text))


def _plain(text: object) -> str:
    return str(text).encode(errors="backslashreplace").decode()
