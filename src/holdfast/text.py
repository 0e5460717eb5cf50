"""Text for people: what a log, a terminal or a note shows of errors, names and payloads. Pure.

What jobs say comes from anywhere. So secrets are removed from it, and every character that could command a terminal or
change the order in which text is read is written as its escape.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import sysconfig
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

from holdfast.errors import HoldfastError, NotFound, StoreRefused, Unavailable, UsageError

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


# Tracebacks as they are stored and shown: the user's own lines, with the frames of Holdfast folded.
#
# A traceback has a bounded size. When it is too long, frames of libraries go first and then the user's frames in the
# middle. The frame that raised and the exception itself are always there.


E = TypeVar("E", bound=BaseException)

LIMIT = 12_000  # bytes; below the default error_cap, so that nothing cuts it again
_LONGEST_LINE = 2_000  # characters of the exception's own text, which is also stored beside the traceback
_LINKS = 8  # exceptions of a chain or of a group that are shown
_OURS = str(Path(__file__).parent) + "/"
_LIBRARIES = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")})
_MOST_OF_A_STACK = 8  # frames of libraries, and as many of the user's
_FOLD = "<folded>"
_CUT = "\n…\n"
_BEFORE = "… and what came before it"
_STEPS = (1_000, 100, 40, 20, 8, 4, 2, 1)  # frames that are kept, ever fewer until it is short enough


def traceback_of(problem: BaseException) -> str:
    """The traceback of an exception, with its causes, in at most `LIMIT` bytes."""
    chain = traceback.TracebackException.from_exception(problem, compact=True)
    _shorten_texts(chain)
    stacks = {id(link): list(link.stack) for link in _links(chain)}
    text = ""
    for most in _STEPS:
        for link in _links(chain):
            link.stack = _FoldedStack(_kept(stacks[id(link)], most, refused=_is_refusal(link)))
        text = "".join(chain.format())
        if len(text.encode(errors="replace")) <= LIMIT:
            break
    return without_middle(text, LIMIT - len(_CUT.encode()))


def stack_of(frames: Sequence[FrameType]) -> str:
    """Where a thread stands, as a traceback shows it. The innermost frame comes first here, and last in the text."""
    lines = list(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(frames)))
    return "".join(_FoldedStack(_kept(lines, _MOST_OF_A_STACK, refused=False)).format())


def message_of(problem: BaseException | None) -> str:
    """The type of an exception and what it says, also of one whose `__str__` fails."""
    try:
        said = str(problem)
    except Exception:  # noqa: BLE001  the user's own code
        said = "its text could not be made"
    return f"{type(problem).__name__}: {said}"


def without_middle(text: str, cap: int) -> str:
    """A text of more than `cap` bytes without its middle, because its end says what happened."""
    data = text.encode(errors="replace")
    if len(data) <= cap:
        return text
    half = max(1, cap // 3)
    return f"{data[:half].decode(errors='ignore')}{_CUT}{data[-(cap - half) :].decode(errors='ignore')}"


def with_traceback(problem: E, what: str, trace: str | None) -> E:
    """The exception, with a note that shows where something of the same failure was raised by a worker."""
    if trace:
        problem.add_note(f"The traceback of {what}, from its worker:\n{shown_lines(trace)}")
    return problem


def log_with_traceback(
    log: logging.Logger, level: int, words: str, trace: str, extra: dict[str, Any] | None = None
) -> None:
    """Log `words` with a traceback below them, both as people may read them. Ask `isEnabledFor` first."""
    record = log.makeRecord(log.name, level, __file__, 0, words, (), None, extra=extra)
    if trace:
        record.exc_text = shown_lines(trace)  # where formatters look for a traceback that has been formatted
    log.handle(record)


class _FoldedStack(traceback.StackSummary):
    """Frames, among them stand-ins for those that are folded or left out."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **how: Any) -> str:
        if frame_summary.filename == _FOLD:
            return f"  … {frame_summary.name}\n"
        return super().format_frame_summary(frame_summary, **how)


def _kept(frames: Sequence[traceback.FrameSummary], most: int, *, refused: bool) -> list[traceback.FrameSummary]:
    """At most so many frames of libraries and so many of the user's, the last of each; ours are folded.

    `refused`: Holdfast raised it on purpose, and its message says all.
    """
    if all(map(_is_ours, frames)) and not refused:  # a fault of Holdfast itself
        return _folded(frames[-most:], lambda _: False, "", before=len(frames) - most)
    own = _folded(frames, _is_ours, "of holdfast")
    foreign = [frame for frame in own if _is_library(frame)]
    spared = {id(frame) for frame in foreign[len(foreign) - most :]} if len(foreign) > most else None
    short = _folded(own, lambda frame: spared is not None and _is_library(frame) and id(frame) not in spared)
    if len(short) <= 2 * most:
        return short
    return [*short[:most], _fold(len(short) - 2 * most, "left out"), *short[-most:]]


def _folded(
    frames: Sequence[traceback.FrameSummary],
    goes: Callable[[traceback.FrameSummary], bool],
    what: str = "of libraries",
    *,
    before: int = 0,
) -> list[traceback.FrameSummary]:
    """The frames, with one stand-in for each row of those that go."""
    kept: list[traceback.FrameSummary] = [_fold(before, "left out")] if before > 0 else []
    gone = 0
    for frame in frames:
        if goes(frame):
            gone += 1
            continue
        if gone:
            kept.append(_fold(gone, what))
            gone = 0
        kept.append(frame)
    return [*kept, _fold(gone, what)] if gone else kept


def _fold(count: int, what: str) -> traceback.FrameSummary:
    words = f"{plural(count, 'frame')} {what}"
    return traceback.FrameSummary(_FOLD, count, words, lookup_line=False, line="")


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _is_refusal(link: traceback.TracebackException) -> bool:
    return issubclass(link.exc_type, HoldfastError)


def _is_library(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((*_LIBRARIES, "<frozen "))


def _links(chain: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, its causes, and those in its groups."""
    waiting, seen = [chain], 0
    while waiting and seen < _LINKS:
        link = waiting.pop(0)
        seen += 1
        yield link
        waiting += [each for each in (link.__cause__, link.__context__) if each is not None]
        waiting += getattr(link, "exceptions", None) or []


def _shorten_texts(chain: traceback.TracebackException) -> None:
    """Cut the chain where it is too long, and long messages. `_str` is what the standard library prints."""
    links = list(_links(chain))
    known = {id(link) for link in links}
    for link in links:
        left: list[str] = []
        if link.__cause__ is not None and id(link.__cause__) not in known:
            link.__cause__ = None
            left = [_BEFORE]
        if link.__context__ is not None and id(link.__context__) not in known:
            link.__context__ = None
            left = [_BEFORE]
        group: list[traceback.TracebackException] | None = getattr(link, "exceptions", None)
        if group:
            link.exceptions = [each for each in group if id(each) in known]
            left += [f"… and {gone} more"] if (gone := len(group) - len(link.exceptions)) else []
        notes = getattr(link, "__notes__", None)
        own_notes = notes if isinstance(notes, Sequence) and not isinstance(notes, str) else []
        if own_notes or left:
            link.__notes__ = [*(_short(str(note)) for note in own_notes[:_LINKS]), *left]
        if isinstance(text := getattr(link, "_str", None), str):
            link._str = _short(text)  # type: ignore[attr-defined]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


# Redaction: what leaves the house without its secrets. Pure.
#
# A value goes by the name of its key, a text by what it looks like; JSON in a text is both, and stays JSON. What
# nothing
# is found in stays as it is, byte for byte. These rules hold for whatever is written for others to read.


REDACTED = "[redacted]"
MARGIN = 4  # times what is kept of a text is looked at: a secret that is cut in half does not look like one

Names = Literal["none", "arguments", "all"]
"""Which names of keys tell secrets; among arguments `key` alone does not, for many a tool takes one."""

_NAMES = frozenset(
    {"token", "key", "secret", "password", "passwd", "passphrase", "pwd", "authorization", "auth", "bearer"}
    | {"credential", "cookie", "apikey"}
)
_COUNTED = "tokens"  # how long a text is, in most places
_BELOW: dict[str, Names] = {"input": "arguments", "variables": "all"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_OBJECT = re.compile(r'\{\s*"')
_PATIENCE = 20  # how often a text is read without finding anything
_SHORTEST = 6  # no text that holds a secret is shorter

# What a secret looks like wherever it stands, and what must be found in it besides. What a group `kept` matches stays.
# Texts come from anybody, so each pattern must take time in proportion to the text: no character may be read again for
# each place where a match could begin. tests/unit/test_hostile_text.py has the inputs that tell.
_LOOKS: list[tuple[re.Pattern[str], re.Pattern[str] | None]] = [
    (re.compile(pattern, re.DOTALL), re.compile(inside) if inside else None)
    for pattern, inside in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", ""),
        (r"(?i:\bbearer)\s+[A-Za-z0-9._~+/=-]{8,}", ""),
        (r"\b(?:sk|rk|pk)[-_][A-Za-z0-9_-]{8,}", r"\d|[A-Za-z0-9]{10}"),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", ""),
        (r"\bgh[pousr]_[A-Za-z0-9]{20,}", ""),
        (r"\bgithub_pat_[A-Za-z0-9_]{20,}", ""),
        (r"\bglpat-[A-Za-z0-9_-]{20,}", ""),
        (r"\bnpm_[A-Za-z0-9]{36}", ""),
        (r"\bhft_[A-Za-z0-9_-]{20,}", ""),
        (r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", ""),
        (r"\bAIza[0-9A-Za-z_-]{35}", ""),
        (r"\bSG\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}", ""),
        # Tried only where letters and digits begin that two dots follow: so the first `eyJ` among them is the one.
        (
            r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]++\.[A-Za-z0-9_-]{8,}+\.)(?P<kept>(?:[A-Za-z0-9_-]*?-)??)"
            r"eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+",
            "",
        ),
        (r"(?<=://)[^/\s:@\"'<>]*:[^/\s\"'<>]+(?=@)", ""),
        # A password with a slash; what looks like a port and a path is none. A match ends before the next address.
        (
            r"(?<=://)(?!\[)[^/\s:@\"'<>]*:(?!\d{1,5}[/?#])(?:[^\s:@\"'<>]|:(?!//))++"
            r"(?:@(?:[^/\s:@\"'<>]|:(?!//))++)*(?=@)",
            "",
        ),
        (r"(?<=://)(?!\[redacted\])[^/\s:@\"'<>]{8,}(?=@)", ""),
    )
]
_NAME = rf"(?P<name>[\w-]{{0,40}}?(?:{'|'.join(sorted(_NAMES))})[\w-]{{0,40}})"
# What follows a name that suggests a secret, in a text that is not JSON.
_NAMED_SECRETS = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"\b(?P<before>(?P<name>(?:proxy-)?authorization)[\"']?\s*[:=]\s*[\"']?)"
        r"(?P<secret>(?:basic|bearer|digest|token|apikey|negotiate)\s+[^\s\"',;]+)",
        rf"(?P<before>[?&]{_NAME}=)(?P<secret>[^&#\s\"'<>]+)",
        rf"(?P<before>(?P<quote>[\"']){_NAME}(?P=quote)\s*:\s*)(?P<secret>\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+')",
        rf"(?P<before>(?P<quote>\\{{1,15}}\"){_NAME}(?P=quote)\s*:\s*(?P=quote))(?P<secret>[^\"\\]+)",
    )
]
# Behind a name without quotes a digit tells a value from a word, as in prose and in programs. A value in quotes ends in
# the same line, so that a single apostrophe begins none.
_GAP = r"(?:\n|[^\S\n]*+)"
_BARE_NAME = re.compile(rf"(?<![\w-])(?=[\w-]{{2,90}}{_GAP}[:=]){_NAME}{_GAP}[:=]{_GAP}", re.IGNORECASE)
_QUOTED_VALUE = re.compile(r"(?P<quote>\\{0,15}[\"'])(?P<secret>(?:(?!(?P=quote))(?:\\.|[^\\\n]))*+)(?P=quote)")
_BARE_VALUE = re.compile(r"[^\s\"'&,;#()\[\]{}<>\\]++")
_DIGIT = re.compile(r"\d")


class Redactor:
    """Takes secrets out, and counts them."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """`patterns` are regular expressions for what else is a secret."""
        self.count = 0
        try:
            extra = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        except re.error as problem:
            raise UsageError(f"{problem.pattern!r} is not a regular expression: {problem}.") from problem
        self._looks = _LOOKS + [(pattern, None) for pattern in extra]

    def text(self, text: str) -> str:
        if len(text) < _SHORTEST and len(self._looks) == len(_LOOKS):
            return text
        left, end = [], 0
        for start, stop, value in _objects(text):
            left += [self._prose(text[end:start]), self._inside(text[start:stop], value)]
            end = stop
        return "".join([*left, self._prose(text[end:])])

    def _prose(self, text: str) -> str:
        for pattern, inside in self._looks:
            text = pattern.sub(partial(self._looking_so, inside), text)
        for named in _NAMED_SECRETS:
            text = named.sub(self._behind_name, text)
        return self._behind_bare_names(text)

    def _looking_so(self, inside: re.Pattern[str] | None, found: re.Match[str]) -> str:
        if inside is not None and not inside.search(found[0]):
            return found[0]
        self.count += 1
        return (found.groupdict().get("kept") or "") + REDACTED

    def _behind_bare_names(self, text: str) -> str:
        left, end = [], 0
        stop = digit = 0  # where the value ends that was read last, and the next digit of it
        at = _BARE_NAME.search(text)
        while at is not None:
            begin = at.end()
            quoted = _QUOTED_VALUE.match(text, begin)
            if quoted is not None and self._is_quoted_secret(at["name"], quoted["secret"]):
                left += [text[end : quoted.start("secret")], REDACTED]
                begin = end = quoted.end("secret")
            if begin >= stop:
                value = _BARE_VALUE.match(text, begin)
                stop, digit = begin if value is None else value.end(), begin - 1
            if digit < begin:
                found = _DIGIT.search(text, begin, stop)
                digit = stop if found is None else found.start()
            if stop - begin >= _SHORTEST and digit < stop and is_secret_name(at["name"], "arguments"):
                self.count += 1
                left += [text[end:begin], REDACTED]
                begin = end = stop
            at = _BARE_NAME.search(text, begin)
        return "".join([*left, text[end:]]) if left else text

    def _is_quoted_secret(self, name: str, value: str) -> bool:
        if len(value) < _SHORTEST or not _DIGIT.search(value) or not is_secret_name(name, "arguments"):
            return False
        self.count += 1
        return True

    def _behind_name(self, found: re.Match[str]) -> str:
        before, secret = found["before"], found["secret"]
        quote = secret[0] if secret[0] in "\"'" else ""
        if not is_secret_name(found["name"], "arguments") or secret.strip(quote or None) in ("", REDACTED):
            return found[0]
        self.count += 1
        return f"{before}{quote}{REDACTED}{quote}"

    def _inside(self, text: str, value: Any) -> str:
        try:
            return self._kept(text, lambda: self.value(value, "arguments"))
        except RecursionError:  # deeper than it can be written again
            return self._prose(text)

    def maybe(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def json(self, text: str, names: Names = "none") -> str:
        """Stored JSON."""
        return self._kept(text, lambda: self.value(_loads(text), names))

    def _kept(self, text: str, redacted: Callable[[], Any]) -> str:
        """The text itself, unless there was something to take out of what it says."""
        before = self.count
        value = redacted()
        return text if self.count == before else _dump(value)

    def maybe_json(self, text: str | None, names: Names = "none") -> str | None:
        return None if text is None else self.json(text, names)

    def value(self, value: Any, names: Names = "none") -> Any:
        """A copy without secrets, however deep the value is."""
        whole = [value]
        left: list[tuple[Any, Any, Names]] = [(whole, 0, names)]
        while left:
            holder, place, names = left.pop()
            match holder[place]:
                case str() as text:
                    holder[place] = self.text(text)
                case list() as items:
                    holder[place] = copy = items.copy()
                    left += [(copy, index, names) for index in range(len(copy))]
                case dict() as fields:
                    holder[place] = problem_members = {}
                    if isinstance(fields, _RepeatedNames):
                        left += [([{name: each}], 0, names) for name, each in fields.lost()]
                    for name, each in fields.items():
                        shown = self.text(name)
                        problem_members[shown] = REDACTED if self._is_secret(name, each, names) else each
                        left.append((problem_members, shown, _BELOW.get(name, names)))
        return whole[0]

    def _is_secret(self, name: str, value: Any, names: Names) -> bool:
        if not is_secret_name(name, names) or value in (None, "", REDACTED) or isinstance(value, bool):
            return False
        self.count += 1
        return True


class NoRedaction(Redactor):
    """Takes nothing out: for a copy that stays in the house."""

    def text(self, text: str) -> str:
        return text

    def json(self, text: str, names: Names = "none") -> str:
        return text


def is_secret_name(name: str, names: Names = "all") -> bool:
    """Whether a key of this name holds a secret: `api_key`, `AuthToken`, `x-passwords`; not `max_tokens`."""
    if names == "none" or (names == "arguments" and name.lower() in ("key", "keys")):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word != _COUNTED and (word in _NAMES or word.removesuffix("s") in _NAMES) for word in words)


def _objects(text: str) -> Iterator[tuple[int, int, Any]]:
    """Where the JSON objects of a text begin and end, and what they say. What is built to take for ever is prose."""
    end, left = 0, _PATIENCE * len(text)
    for found in _OBJECT.finditer(text):
        if found.start() < end:
            continue
        try:
            value, end = _decoded(text, found.start())
        except json.JSONDecodeError as problem:
            left -= problem.pos - found.start() + problem.pos // 16  # the error counts the lines before it
            if left < 0:
                return
            continue
        except RecursionError:
            return
        yield found.start(), end, value


class _RepeatedNames(dict[str, Any]):
    """An object in which a name stands more than once: the last value counts, and each one is written there."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def lost(self) -> Iterator[tuple[str, Any]]:
        last = {name: number for number, (name, _) in enumerate(self._pairs)}
        return (pair for number, pair in enumerate(self._pairs) if last[pair[0]] != number)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _RepeatedNames(pairs)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _LONG_NUMBERS.decode(text)


def _decoded(text: str, start: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer of more digits than Python reads
        return _LONG_NUMBERS.raw_decode(text, start)


def _number(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


_JSON = json.JSONDecoder(strict=False, object_pairs_hook=_fields)
_LONG_NUMBERS = json.JSONDecoder(
    strict=False, object_pairs_hook=_fields, parse_int=_number
)  # slower, for it calls a function for each number


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which only its escape can say
        return json.dumps(value, separators=(",", ":"))
    return text


# Problems: what an error says to a program, in one shape for HTTP, streams and `--json`.
#
# `error` is the class, `detail` the whole message, `retry` whether to call again, `remedy` what to do about it.


_SENTENCE = re.compile(r"(?<=[.:;])\s+(?=\S)")
_FEWEST_SPACES = 2
_LONGEST = 8_000  # characters of a message
_REMEDIES: tuple[tuple[type[HoldfastError], str], ...] = (
    (NotFound, "Look it up in the list that has it; it may have been removed."),
    (UsageError, "Correct the call: the same call gets the same answer."),
    (Unavailable, "Try again later; nothing was lost."),
    (StoreRefused, "Look at the present state, and decide again."),
)


def problem_members(problem: HoldfastError) -> dict[str, str]:
    """The members of a problem."""
    return members(type(problem).__name__, str(problem), problem.retry, remedy_of(problem))


def members(error: str, detail: str, retry: str, remedy: str) -> dict[str, str]:
    return {"error": error, "detail": _text(detail), "retry": retry, "remedy": _text(remedy)}


def _text(text: str) -> str:
    """What may be shown. A message repeats what was sent, and that is as long as its sender likes."""
    if len(text) <= _LONGEST:
        return shown_text(text)
    return f"{shown_text(text[: MARGIN * _LONGEST])[:_LONGEST]}… ({len(text):,} characters)"


def remedy_of(problem: HoldfastError) -> str:
    """What the message advises after it has said what happened, or what is right for this kind of error."""
    if own := getattr(problem, "remedy", ""):
        return str(own)
    advice = "".join(_SENTENCE.split(str(problem)[: MARGIN * _LONGEST], maxsplit=1)[1:])
    if advice.count(" ") >= _FEWEST_SPACES:  # else it is a value, not what to do about it
        return advice[0].upper() + advice[1:]
    return next((remedy for kind, remedy in _REMEDIES if isinstance(problem, kind)), "")
