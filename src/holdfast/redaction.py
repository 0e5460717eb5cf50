"""Redaction: what leaves the house without its secrets. Pure.

A value goes by the name of its key, a text by what it looks like; JSON in a text is both, and stays JSON. What nothing
is found in stays as it is, byte for byte. These rules hold for whatever is written for others to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from holdfast.errors import UsageError

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
_NAMED = [
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
        for named in _NAMED:
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
                    holder[place] = told = {}
                    if isinstance(fields, _Repeated):
                        left += [([{name: each}], 0, names) for name, each in fields.lost()]
                    for name, each in fields.items():
                        shown = self.text(name)
                        told[shown] = REDACTED if self._is_secret(name, each, names) else each
                        left.append((told, shown, _BELOW.get(name, names)))
        return whole[0]

    def _is_secret(self, name: str, value: Any, names: Names) -> bool:
        if not is_secret_name(name, names) or value in (None, "", REDACTED) or isinstance(value, bool):
            return False
        self.count += 1
        return True


class Nothing(Redactor):
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


class _Repeated(dict[str, Any]):
    """An object in which a name stands more than once: the last value counts, and each one is written there."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def lost(self) -> Iterator[tuple[str, Any]]:
        last = {name: number for number, (name, _) in enumerate(self._pairs)}
        return (pair for number, pair in enumerate(self._pairs) if last[pair[0]] != number)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _Repeated(pairs)


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
