"""Names in a store become texts that no interface would take: what was stored by another release, or by hand.

Every text that is neither an id nor JSON nor one of the words that the code knows is a name. The same name becomes the
same text in all tables, so that what belongs together still does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

_NAME = re.compile(
    "(agent|echo|fail|pay|article|ask|write|done|queue|shut|kind|unknown|need|lane|step|nightly|schedule|pool|plan|actor|"
    "token|maker|tenant|key|editor)(_[0-9]+)(_[a-z]+)?"
)
_PREFIXES = ("agent:", "tool:", "machine:", "job:", "scripted:")
_FREE = {"worker": ("name", "hostname", "version", "reason"), "duty": ("name",), "run": ("error",), "turn": ("model",)}


class Renaming:
    """A name becomes the next of the payloads, and its own number, so that no two are alike."""

    def __init__(self, payloads: Sequence[str]) -> None:
        self._payloads = payloads
        self._known: dict[str, str] = {}

    def name(self, old: str) -> str:
        number = len(self._known)
        text = self._payloads[number % len(self._payloads)].replace("\0", "")  # which no address may have
        if old.startswith("plan_"):
            text = text.replace("/", "|")  # no plan's name has one
        return self._known.setdefault(old, f"{text} {number}")

    def text(self, value: str) -> str:
        """The value with its name changed, if it is one; inside of JSON too."""
        if value[:1] in ("{", "[", '"'):
            try:
                return json.dumps(self.json(json.loads(value)))
            except ValueError:
                return value
        prefix = next((each for each in _PREFIXES if value.startswith(each)), "")
        rest = value.removeprefix(prefix)
        return prefix + self.name(rest) if _NAME.fullmatch(rest) else value

    def json(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value) if value[:1] not in ("{", "[", '"') else value
            case list():
                return [self.json(each) for each in value]
            case dict():
                return {self.text(key): self.json(each) for key, each in value.items()}
            case _:
                return value


def rename(file: Path, payloads: Sequence[str]) -> int:
    """Change all names in a SQLite file that nobody has open; how many there were."""
    renaming = Renaming(payloads)
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("pragma foreign_keys = off")
        for table, columns in _tables(connection):
            for column in columns:
                _change(connection, table, column, renaming)
    return len(renaming._known)


def _tables(connection: apsw.Connection) -> Iterable[tuple[str, list[str]]]:
    names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    for name in names:
        about = list(connection.execute(f"select name, type from pragma_table_info('{name}')"))
        yield name, [column for column, kind in about if kind.upper() == "TEXT"]


def _change(connection: apsw.Connection, table: str, column: str, renaming: Renaming) -> None:
    free = column in _FREE.get(table, ())
    found = list(connection.execute(f"select distinct {column} from {table} where {column} is not null"))
    for (value,) in found:
        new = renaming.name(f"{table}.{column} {value}") if free else renaming.text(value)
        if new != value:
            connection.execute(f"update {table} set {column} = ? where {column} = ?", (new, value))
