"""Rendering: a view becomes HTML through its template. Every text is escaped unless a template says what it is.

The only module that knows the template engine.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from holdfast.http.pages import words
from holdfast.http.pages.asset_files import version
from holdfast.http.pages.markdown import as_html
from holdfast.shown_text import escaped, escaped_lines
from holdfast.values import as_json
from holdfast.values.times import iso


def render(template: str, values: dict[str, Any]) -> str:
    """The page. `values` has `url`, `now`, `may` and what the view says."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("holdfast.http.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": _ago,
        "clock": words.clock,
        "count": words.count,
        "iso": lambda at: "" if at is None else iso(at),
        "json_text": json_text,
        "line": line,
        "lines": lines,
        "markdown": _markdown,
        "money": words.money,
        "short": words.short,
        "span": words.span,
        "state": words.state,
    }
    made.globals |= {"asset": _asset}
    return made


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


def json_text(value: object, longest: int = words.LONGEST_TEXT) -> str:
    """A value as JSON, indented."""
    text = value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False, indent=2, default=str)
    return lines(text, longest)


def _markdown(text: object) -> Markup:
    return Markup(as_html(lines(text)))


def _plain(text: object) -> str:
    return str(text).encode(errors="backslashreplace").decode()
