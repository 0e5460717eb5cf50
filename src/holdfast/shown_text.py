"""Text for people: what a log, a terminal or a note shows of errors, names and payloads. Pure.

What jobs say comes from anywhere. So secrets are removed from it, and every character that could command a terminal or
change the order in which text is read is written as its escape.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence
from typing import Any

from holdfast.redaction import Redactor

INDENT = "  "
_NAMED = 12  # names of one list; more are counted
_JOINERS = "\u200c\u200d"  # some scripts and signs need them, and no terminal obeys them


def plural(number: float, one: str, many: str = "", *, more: str = "") -> str:
    """A number with its noun, and a verb if you like: "1 job", "1,200 jobs"; `more` comes after the number."""
    return f"{number:,}{more} {one if number == 1 and not more else many or f'{one}s'}"


def named(names: Sequence[str], most: int = _NAMED) -> str:
    """Names for people: the first ones, and how many more there are."""
    some = ", ".join(shown(name) for name in names[:most])
    return f"{some} and {len(names) - most} more" if len(names) > most else some


def shell_word(name: str) -> str:
    """A name as an argument of a command of ours that a person copies: one word, and no option."""
    return ("-- " if name.startswith("-") else "") + shlex.quote(escaped(name))


def escaped(text: str, keep: str = "") -> str:
    """One line without characters that a terminal obeys: they, and ends of lines, are written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def escaped_lines(text: str) -> str:
    """What an agent or a person wrote, on as many lines as it has, each without characters that a terminal obeys."""
    return "\n".join(escaped(line, keep=_JOINERS) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n"))


def obeyed_escaped(text: str) -> str:
    """The text as it is, but for characters that a terminal or a browser obeys."""
    return text if text.isprintable() else text.translate(_OBEYED)


def shown(value: object) -> str:
    """One line that people may read: without secrets, and escaped."""
    return escaped(Redactor().text(_readable(value)))


def shown_lines(text: object, indent: str = INDENT) -> str:
    """Text of several lines that people may read. Each is indented, so that none looks like a line of another's."""
    return "\n".join(indent + escaped(line) for line in _lines(Redactor().text(_readable(text))))


def shown_text(text: object) -> str:
    """Text of one or several lines that people may read."""
    return shown_lines(text, indent="")


def shown_value(value: Any) -> Any:
    """A JSON value without secrets, by the names of its keys too."""
    return Redactor().value(value, "arguments")


def first_line(text: object) -> str:
    """What a log says in one line of a message that may have many."""
    return next(iter(_lines(str(text))), "")


def _lines(text: str) -> list[str]:
    # Not splitlines(): it also breaks lines at characters that are to be shown as escapes.
    return text.rstrip("\n").expandtabs(4).split("\n")


def _readable(value: object) -> str:
    """A lone surrogate could not be printed."""
    return str(value).encode(errors="backslashreplace").decode()


def _escape(char: str) -> str:
    code = ord(char)
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if unicodedata.category(char) == "Zs":  # a space that does not break, or of another width
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# All controls but tabs and ends of lines, and those that change the order in which text is read.
_OBEYED = {
    code: _escape(chr(code))
    for codes in (range(0x20), range(0x7F, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A))
    for code in codes
    if chr(code) not in "\t\n\r"
}
