"""Tables: columns that fit the terminal on a terminal, and everything as plain text elsewhere.

A list of columns says what a table has; this module decides what each of them looks like. On a terminal, ids and times
are short. Where the terminal is narrow, columns that say nothing in any row are left out first, then those of less
importance, and a name keeps its end: the function, not its module. What is piped has every column, whole ids and
absolute times, so that a script can rely on it. What comes from outside cannot command the terminal.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from shutil import get_terminal_size
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.logs import is_colored
from holdfast.cli.options import ask, moment, print_json, print_page, say_more, spelled
from holdfast.cli.short_ids import shortest
from holdfast.cli.target import database_label
from holdfast.kernel import queries
from holdfast.kernel.ids import is_id
from holdfast.text import escaped
from holdfast.values import Page, microseconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Text for a terminal: styled spans, fitted to columns, with bars and sparklines. Pure.


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


def width_of(text: str) -> int:
    """How many columns a terminal gives to this text."""
    return sum(_width(char) for char in text)


def fit(text: str, width: int, *, right: bool = False, glyphs: Glyphs = UNICODE) -> str:
    """Exactly so many columns: padded, or cut with a sign that it was."""
    clean = escaped(text)
    have = width_of(clean)
    if have > width:
        clean, have = _cut(clean, width - 1) + glyphs.more[: max(0, width)], width
        clean += " " * (width - width_of(clean))
    return " " * (width - have) + clean if right else clean + " " * (width - have)


def clip(line: Iterable[Cell], width: int) -> Line:
    """The spans that fit into so many columns."""
    kept: Line = []
    left = width
    for span in line:
        text = span.text if width_of(span.text) <= left else _cut(span.text, left)
        if text:
            kept.append(Cell(text, span.style))
        left -= width_of(text)
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


Kind = Literal["text", "name", "prose", "id", "state", "number", "money", "time"]
Row = Sequence[object]

_GAP = 2
_SELECTORS = dict.fromkeys([*range(0xFE00, 0xFE10)])  # they change how wide a terminal draws a sign
_FLEXIBLE = ("text", "name", "prose")
_NAMED = 28  # columns that a name has at least, if it is so long
_STYLES = {
    "green": ("succeeded", "completed", "answered", "active", "ended", "approved", "applied"),
    "cyan": (
        "running",
        "streaming",
        "submitted",
        "processing",
        "batch_submitting",
        "batch_pending",
        "batch_processing",
    ),
    "yellow": (
        *("waiting", "pending_tools", "awaiting_input", "open", "draining", "searching", "truncated", "limited"),
        *("refused", "paused", "expired"),
    ),
    "bold red": ("failed", "lost", "silent", "errored", "denied", "processing_error"),
    "dim": ("cancelled", "skipped", "stopped", "withdrawn", "-"),
}
_STYLE_OF = {state: style for style, states in _STYLES.items() for state in states}


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `rank` 0 is always shown; of the others, the highest is left out first.

    `of` names the noun whose ids it shows. A `text` is cut to no less than `least` columns; a `prose` is wrapped. A
    `name` loses modules from its beginning, and what comes after the last dot is cut last. `late` is shown in place of
    a time that has passed. A `sparse` column is left out where no row has anything in it.
    """

    title: str
    kind: Kind = "text"
    rank: int = 0
    of: str = ""
    least: int = 12
    late: str = ""
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class TableStyle:
    """For whom a table is. Without a terminal, the rest means nothing."""

    terminal: bool = False
    wide: bool = False  # whole ids, absolute times, every column
    width: int = 80
    now: int = 0  # of the store
    database: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)  # how long a short id is, by noun

    @property
    def short(self) -> bool:
        return self.terminal and not self.wide


class DualCell(NamedTuple):
    """A cell that a pipe gets as `plain`. On a terminal, its parts are written one after the other."""

    plain: str
    parts: Sequence[object]


def on_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_width() -> int:
    return get_terminal_size().columns


def print_table(columns: Sequence[Column], rows: Sequence[Row], look: TableStyle, *, empty: str) -> None:
    """Print a table; `empty` if it has no rows."""
    if not rows:
        click.echo(empty)
        return
    texts = [[cell_text(column, cell, look) for column, cell in zip(columns, row, strict=True)] for row in rows]
    if not look.terminal:
        _print_plain([column.title for column in columns], texts)
        return
    console = _console(look)
    for line in styled_lines(columns, texts, look):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def heading(title: str, look: TableStyle) -> str:
    """What a list is of, and on a terminal of which database; the end of a long name says most."""
    if not look.terminal:
        return title
    database = _one_line(look.database)
    room = look.width - len(f"{title} in ")
    if not look.wide and len(database) > room:
        database = f"…{database[len(database) - max(0, room - 1) :]}"
    return f"{title} in {database}"


def cell_text(column: Column, cell: object, look: TableStyle) -> str:
    """A cell as it is shown, before it is cut."""
    if isinstance(cell, DualCell):
        return "".join(cell_text(column, part, look) for part in cell.parts) if look.short else _one_line(cell.plain)
    if cell is None or cell == "" or (look.short and cell == "{}"):
        return "-"
    if isinstance(cell, datetime):
        if look.short and column.late and microseconds(cell) <= look.now:
            return column.late
        return relative(cell, look.now) if look.short else moment(cell) or "-"
    text = _one_line(str(cell))
    if look.short and column.of in look.ids and is_id(text):
        return text[: look.ids[column.of]]
    return text


def relative(at: datetime, now: int) -> str:
    """A time as people say it: how long ago, or in how long."""
    past = now - microseconds(at)
    number, unit = spelled(abs(past))
    if abs(past) < 1_000_000:
        return "now"
    return f"{number} {unit} ago" if past > 0 else f"in {number} {unit}"


def _one_line(text: str) -> str:
    return escaped(text.translate(_SELECTORS))


# Plain text


def _print_plain(titles: Sequence[str], texts: Sequence[Sequence[str]]) -> None:
    lines = [titles, *texts]
    widths = [max(width_of(line[i]) for line in lines) for i in range(len(titles))]
    for line in lines:
        cells = (cell + " " * (width - width_of(cell)) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


# On a terminal


def styled_lines(columns: Sequence[Column], texts: Sequence[Sequence[str]], look: TableStyle) -> list[Text]:
    """The lines of a table; none is wider than the terminal, unless the look is wide."""
    from rich.cells import cell_len
    from rich.text import Text

    texts = _aligned(columns, texts)
    natural = [
        max(cell_len(line[i]) for line in [[column.title for column in columns], *texts])
        for i, column in enumerate(columns)
    ]
    blank = {at for at in range(len(columns)) if all(_says_nothing(row[at]) for row in texts)}
    widths = (
        dict(enumerate(natural)) if look.wide else fitted(columns, natural, look.width, blank, _named(columns, texts))
    )
    shown = list(widths)

    def cell(at: int, text: str, style: str) -> Text:
        name = columns[at].kind == "name"
        made = Text(short_name(text, widths[at]) if name else text, style=style, no_wrap=True, end="")
        if widths[at] < made.cell_len:
            made.truncate(widths[at], overflow="ellipsis")
        room = widths[at] - made.cell_len
        right = columns[at].kind in ("number", "money")
        if right:
            made.pad_left(room)
        elif at != shown[-1]:
            made.pad_right(room)
        return made

    def line(cells: Mapping[int, Text]) -> Text:
        joined = Text(" " * _GAP).join(cells.values())
        joined.rstrip()
        return joined

    lines = [line({at: cell(at, columns[at].title, "bold") for at in shown})]
    for row in texts:
        for part in _wrapped(columns, row, widths):
            lines.append(line({at: cell(at, part[at], _style(columns[at], part[at])) for at in shown}))
    return lines


def _says_nothing(text: str) -> bool:
    return text == "-" or not text.strip("0.")


def _named(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> dict[int, int]:
    """How wide each column of names should be: so that what follows the last dot is whole, unless it is very long."""
    at_end = {
        at: max((width_of(row[at].rpartition(".")[2]) + ("." in row[at]) for row in texts), default=0)
        for at, column in enumerate(columns)
        if column.kind == "name"
    }
    return {at: min(wide, _NAMED) for at, wide in at_end.items()}


def short_name(name: str, width: int) -> str:
    """A name in so many columns: without its first modules, and without its middle if that is not enough."""
    if width_of(name) <= width:
        return name
    rest = name
    while "." in rest:
        rest = rest.partition(".")[2]
        if width_of(rest) < width:
            return f"…{rest}"
    if width_of(rest) <= width:
        return rest
    from rich.cells import chop_cells

    half = max(1, (width - 1) // 2)
    front, back = chop_cells(rest, max(1, width - 1 - half))[0], chop_cells(rest[::-1], half)[0][::-1]
    return f"{front}…{back}" if width > 2 else rest


def fitted(
    columns: Sequence[Column],
    natural: Sequence[int],
    width: int,
    blank: Set[int] = frozenset(),
    named: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Which columns are shown, and how wide: `blank` ones are left out first, then less important ones, then texts are
    cut. `named` says how wide names should at least be."""

    def least(at: int) -> int:
        flexible = columns[at].kind in _FLEXIBLE
        return (
            min(natural[at], max(named.get(at, columns[at].least), len(columns[at].title))) if flexible else natural[at]
        )

    shown = [at for at in range(len(columns)) if not (columns[at].sparse and at in blank)]
    for at in sorted(blank, key=lambda at: (columns[at].rank, at), reverse=True):
        if at in shown and columns[at].kind != "id" and sum(natural[each] + _GAP for each in shown) - _GAP > width:
            shown.remove(at)
    while sum(map(least, shown)) + _GAP * (len(shown) - 1) > width:
        going = max(shown, key=lambda at: (columns[at].rank, at))
        if columns[going].rank == 0:
            break
        shown.remove(going)
    widths = {at: least(at) for at in shown}
    _widen(columns, natural, widths, width - _GAP * (len(shown) - 1) - sum(widths.values()))
    _narrow(columns, widths, sum(widths.values()) + _GAP * (len(shown) - 1) - width)
    return widths


def _widen(columns: Sequence[Column], natural: Sequence[int], widths: dict[int, int], room: int) -> None:
    """Give what is left to the texts that were cut, the shortest first, so that most of them are whole. What can be
    wrapped comes last."""
    for prose in (False, True):
        cut = [at for at in widths if widths[at] < natural[at] and (columns[at].kind == "prose") is prose]
        for number, at in enumerate(sorted(cut, key=lambda at: natural[at])):
            given = min(natural[at] - widths[at], max(0, room) // (len(cut) - number))
            widths[at] += given
            room -= given


def _narrow(columns: Sequence[Column], widths: dict[int, int], over: int) -> None:
    """On a terminal that is too narrow for what must be shown, cut texts first and ids last."""
    order = sorted(widths, key=lambda at: (columns[at].kind == "id", columns[at].kind not in _FLEXIBLE))
    for at in order:
        taken = max(0, min(over, widths[at] - 1))
        widths[at] -= taken
        over -= taken


def _aligned(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Amounts of money with their decimal points below each other."""
    made = [list(row) for row in texts]
    for at, column in enumerate(columns):
        if column.kind == "money":
            places = max(len(row[at].partition(".")[2]) for row in made)
            for row in made:
                have = len(row[at].partition(".")[2])
                row[at] += " " * (places - have + (1 if places and not have else 0))
    return made


def _wrapped(columns: Sequence[Column], row: Sequence[str], widths: Mapping[int, int]) -> list[list[str]]:
    """A row as lines: prose takes as many as it needs."""
    import textwrap

    parts = {
        at: textwrap.wrap(row[at], max(1, widths[at])) or [""]
        for at in widths
        if columns[at].kind == "prose" and len(row[at]) > widths[at]
    }
    height = max([1, *map(len, parts.values())])
    lines = [list(row) if not number else [""] * len(row) for number in range(height)]
    for at, pieces in parts.items():
        for number, line in enumerate(lines):
            line[at] = pieces[number] if number < len(pieces) else ""
    return lines


def _style(column: Column, text: str) -> str:
    if column.kind == "state":
        return _STYLE_OF.get(text, "")
    if column.kind == "time" or text == "-":
        return "dim"
    return ""


def _console(look: TableStyle) -> Console:
    from rich.console import Console

    colors: Literal["auto"] | None = "auto" if is_colored(sys.stdout) else None
    width = max(1, look.width)
    return Console(file=sys.stdout, width=width, color_system=colors, highlight=False, markup=False, emoji=False)


# Lists: ask the store, print a table that names the database, and say what to do when there is nothing.


T = TypeVar("T")

_NO_MATCH = "Nothing matches all of these options; leave some out."

wide_option = click.option(
    "--wide", is_flag=True, help="On a terminal: every column, whole ids and absolute times, however long the lines."
)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list is of. `advice` says how to get something into it, for who finds it empty."""

    title: str
    advice: str
    columns: Sequence[Column]
    empty: str = ""  # what an empty list says; "no …" with the title unless given


def print_list(
    url: str | None,
    question: Callable[[Holdfast], Coroutine[Any, Any, Sequence[T]]],
    listing: Listing,
    cells: Callable[[T], Row],
    *,
    filtered: bool = False,
    as_json: bool,
    wide: bool,
) -> Sequence[T]:
    """Ask for a list and print it, as JSON or as a table. `filtered`: the options leave some out."""

    async def looked(app: Holdfast) -> tuple[Sequence[T], list[Row], TableStyle]:
        rows = await question(app)
        shown = [] if as_json else [cells(row) for row in rows]
        return rows, shown, TableStyle() if as_json else await look_at(app, listing.columns, shown, wide=wide)

    rows, shown, look = ask(url, looked)
    if as_json:
        print_page(rows) if isinstance(rows, Page) else print_json(rows)
        return rows
    print_listed(listing, shown, look, filtered=filtered)
    if isinstance(rows, Page):
        say_more(rows)
    return rows


def print_listed(listing: Listing, rows: Sequence[Row], look: TableStyle, *, filtered: bool = False) -> None:
    """Print a list below a line that names the database."""
    if rows and look.terminal:
        click.secho(heading(listing.title, look), dim=True)
    print_table(listing.columns, rows, look, empty=heading(listing.empty or f"no {listing.title}", look))
    if not rows:
        click.echo(_NO_MATCH if filtered else listing.advice, err=True)


async def look_at(app: Holdfast, columns: Sequence[Column], rows: Sequence[Row], *, wide: bool = False) -> TableStyle:
    """How to show these rows: on a terminal, with ids as short as this database allows."""
    if not on_terminal():
        return TableStyle()
    wanted: dict[str, list[str]] = {}
    for at, column in enumerate(columns):
        if column.of and not wide:
            wanted.setdefault(column.of, []).extend(str(row[at]) for row in rows if is_id(row[at]))
    return TableStyle(
        terminal=True,
        wide=wide,
        width=terminal_width(),
        now=await core_of(app).runtime().database.transact(queries.now),
        database=database_label(app.settings),
        ids={noun: await shortest(app, noun, ids) for noun, ids in wanted.items()},
    )
