"""Rows of the store as plain mappings, column to value, as `select *` reads them; what changed between two looks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Row = Mapping[str, Any]
Key = Hashable
Table = Mapping[Key, Row]

# A job and an attempt are judged whole, as the views put them together; where their rows stand is judged beside it.
WHOLE: Final[Mapping[str, str]] = {"job": "job_now", "attempt": "attempt_now"}
PARTS: Final[Mapping[str, str]] = {"asked": "job", "tried": "attempt"}

PRIMARY_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "job": ("seq",),
    "attempt": ("job", "epoch", "token"),
    "asked": ("seq",),
    "ready": ("route", "priority", "slot", "seq"),
    "later": ("seq",),
    "lease": ("seq",),
    "ended": ("seq",),
    "family": ("job",),
    "progress": ("job",),
    "unique_key": ("scope", "key"),
    "tried": ("job", "epoch", "token"),
    "step": ("job", "name"),
    "signal": ("seq",),
    "channel": ("name",),
    "cancellation": ("job",),
    "idempotency": ("tenant", "key"),
    "worker": ("seq",),
    "duty": ("name",),
    "cluster": ("one",),
    "queue": ("name",),
    "lane": ("name",),
    "schedule": ("name",),
    "route": ("id",),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of some tables, each by its primary key, and the database's clock when they were read."""

    now: int
    tables: Mapping[str, Table] = field(default_factory=dict)

    def __getitem__(self, table: str) -> Table:
        return self.tables.get(table, {})


class Change(NamedTuple):
    """One row before and after; None where there was or is no row."""

    table: str
    key: Key
    old: Row | None
    new: Row | None

    def __str__(self) -> str:
        if self.old is None or self.new is None:
            return f"{self.table} {self.key}: {self.old and dict(self.old)} → {self.new and dict(self.new)}"
        return f"{self.table} {self.key}: {columns(self.old, self.new, changed(self.old, self.new))}"


def relation(name: str) -> str:
    """The view or table in which the rows of that name are read."""
    return WHOLE.get(name) or PARTS.get(name) or name


def tables() -> list[str]:
    """The tables themselves, by the names they have in the database."""
    return [relation(name) for name in PRIMARY_KEYS if name not in WHOLE]


def snapshot(now: int, tables: Mapping[str, Iterable[Row]]) -> Snapshot:
    return Snapshot(now, {name: {primary_key(name, row): row for row in rows} for name, rows in tables.items()})


def primary_key(table: str, row: Row) -> Key:
    names = PRIMARY_KEYS[table]
    return row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)


def differences(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for table in dict.fromkeys((*before.tables, *after.tables)):
        old, new = before[table], after[table]
        for key in dict.fromkeys((*old, *new)):
            was, now = old.get(key), new.get(key)
            if was is not now and was != now:
                yield Change(table, key, was, now)


def changed(old: Row, new: Row) -> frozenset[str]:
    """The columns in which two images of a row differ."""
    return frozenset(column for column in new if old.get(column) != new[column])


def columns(old: Row, new: Row, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {old.get(name)!r} → {new.get(name)!r}" for name in sorted(names))
