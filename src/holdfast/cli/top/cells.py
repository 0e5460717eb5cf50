"""Text for a terminal: styled spans, fitted to columns, with bars and sparklines. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from holdfast.shown_text import escaped

Style = Literal["plain", "title", "head", "dim", "good", "busy", "warn", "bad", "chosen"]

_ANSI: dict[Style, str] = {
    "plain": "",
    "title": "1;36",
    "head": "1;2",
    "dim": "2",
    "good": "32",
    "busy": "36",
    "warn": "33",
    "bad": "1;31",
    "chosen": "1;7",
}
_COLORLESS = {style: ";".join(code for code in codes.split(";") if len(code) == 1) for style, codes in _ANSI.items()}


class Glyphs(NamedTuple):
    """What bars and sparklines are drawn with; from nothing to full."""

    steps: str
    full: str
    empty: str
    paused: str
    more: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "█", "░", "‖", "…")
ASCII = Glyphs(".:-=+*%#", "#", ".", "!", "~")


class Cell(NamedTuple):
    text: str
    style: Style = "plain"


Line = list[Cell]


def columns(text: str) -> int:
    """How many columns a terminal gives to this text."""
    return sum(_width(char) for char in text)


def fit(text: str, width: int, *, right: bool = False, glyphs: Glyphs = UNICODE) -> str:
    """Exactly so many columns: padded, or cut with a sign that it was."""
    clean = escaped(text)
    have = columns(clean)
    if have > width:
        clean, have = _cut(clean, width - 1) + glyphs.more[: max(0, width)], width
        clean += " " * (width - columns(clean))
    return " " * (width - have) + clean if right else clean + " " * (width - have)


def clip(line: Iterable[Cell], width: int) -> Line:
    """The spans that fit into so many columns."""
    kept: Line = []
    left = width
    for span in line:
        text = span.text if columns(span.text) <= left else _cut(span.text, left)
        if text:
            kept.append(Cell(text, span.style))
        left -= columns(text)
    return kept


def spark(counts: Sequence[int], width: int, glyphs: Glyphs = UNICODE) -> Line:
    """The last counts as a row of bars, the highest as high as can be; what is nothing is dim."""
    shown = list(counts)[-width:] if width > 0 else []
    top = max(shown, default=0)
    line: Line = [Cell(" " * (width - len(shown)))]
    for count in shown:
        step = 0 if not count else max(1, -(-count * (len(glyphs.steps) - 1) // top))
        style: Style = "good" if count else "dim"
        if line[-1].style == style:
            line[-1] = Cell(line[-1].text + glyphs.steps[step], style)
        else:
            line.append(Cell(glyphs.steps[step], style))
    return [span for span in line if span.text]


def bar(part: int, whole: int, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """How much of the whole is used; any use shows, and full is another colour."""
    filled = 0 if whole <= 0 else min(width, max(1 if part else 0, part * width // whole))
    style: Style = "warn" if whole and part >= whole else "busy"
    return [Cell(glyphs.full * filled, style), Cell(glyphs.empty * (width - filled), "dim")]


def ansi(line: Iterable[Cell], *, colored: bool = True) -> str:
    """The line as a terminal takes it; without colours it is still bold, dim or inverse where it has to be."""
    codes = _ANSI if colored else _COLORLESS
    return "".join(f"\x1b[{codes[span.style]}m{span.text}\x1b[0m" if codes[span.style] else span.text for span in line)


def text(line: Iterable[Cell]) -> str:
    return "".join(span.text for span in line).rstrip()


def _cut(given: str, width: int) -> str:
    kept, used = "", 0
    for char in given:
        used += _width(char)
        if used > width:
            break
        kept += char
    return kept


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
