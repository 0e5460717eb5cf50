"""Redacting: what leaves the house without its secrets. Pure.

A value goes by the name of its key, a text by what it looks like. Text in which nothing is found stays as it is, byte
for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from holdfast.errors import UsageError

REDACTED = "[redacted]"

Names = Literal["none", "arguments", "all"]
"""Which names of keys tell secrets; among arguments `key` alone does not, for many a tool takes one."""

_NAMES = frozenset(
    {"token", "key", "secret", "password", "passwd", "passphrase", "pwd", "authorization", "auth", "bearer"}
    | {"credential", "credentials", "cookie", "apikey"}
)
_BELOW: dict[str, Names] = {"input": "arguments", "variables": "all"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PATTERNS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"(?i:\bbearer)\s+[A-Za-z0-9._~+/=-]{8,}",
    r"\b(?:sk|rk|pk)[-_][A-Za-z0-9_-]{8,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\bAIza[0-9A-Za-z_-]{35}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
)


class Redactor:
    """Takes secrets out, and counts them."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """`patterns` are regular expressions for what else is a secret."""
        self.count = 0
        try:
            extra = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        except re.error as problem:
            raise UsageError(f"{problem.pattern!r} is not a regular expression: {problem}.") from problem
        self._patterns = [re.compile(pattern, re.DOTALL) for pattern in _PATTERNS] + extra

    def text(self, text: str) -> str:
        for pattern in self._patterns:
            text, found = pattern.subn(REDACTED, text)
            self.count += found
        return text

    def maybe(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def json(self, text: str, names: Names = "none") -> str:
        """Stored JSON."""
        before = self.count
        value = self.value(json.loads(text), names)
        if self.count == before:
            return text
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def maybe_json(self, text: str | None, names: Names = "none") -> str | None:
        return None if text is None else self.json(text, names)

    def value(self, value: Any, names: Names = "none") -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(each, names) for each in value]
        if isinstance(value, dict):
            return {self.text(name): self._field(name, each, names) for name, each in value.items()}
        return value

    def _field(self, name: str, value: Any, names: Names) -> Any:
        if is_secret_name(name, names) and value not in (None, "", REDACTED) and not isinstance(value, bool):
            self.count += 1
            return REDACTED
        return self.value(value, _BELOW.get(name, names))


class Nothing(Redactor):
    """Takes nothing out: for a copy that stays in the house."""

    def text(self, text: str) -> str:
        return text

    def json(self, text: str, names: Names = "none") -> str:
        return text


def is_secret_name(name: str, names: Names = "all") -> bool:
    """Whether a key of this name holds a secret: `api_key`, `AuthToken`, `x-password`; not `max_tokens`."""
    if names == "none" or (names == "arguments" and name.lower() == "key"):
        return False
    return any(word.lower() in _NAMES for word in _WORDS.findall(name))
