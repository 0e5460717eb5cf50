"""Five rules by which one text of a statement serves both databases.

The text is PostgreSQL's. Whatever needs more than these rules has a text for each database in its file, as a statement
or as a part. No rule looks into a quoted text or a comment. What none of them can give to a database is refused with
`StatementDrift` when the statement is loaded. Other words are not checked here: the database refuses what it does not
know when the statement is prepared.

1. **Rows.** `rows(:list) as r (id bigint, name text)` in a FROM clause is a table of what a caller sent: `unnest` of
   one array for each column on PostgreSQL, `json_each` on SQLite. If the group declares `:list` as a list of records,
   the columns are fields of its record. Otherwise `rows(:a, :b) as r (x bigint, y text)` has one plain list for each
   column, all of the same length. With `rows(...) with ordinality`, one more column at the end, without a type,
   numbers the rows from 1.

On SQLite only:

2. **Locks.** Row locks (`for update`, `for no key update`, `for share`, `for key share`, with `of x` and `skip locked`)
   are left out: SQLite has one writer, and the transaction that may write holds that lock.
3. **Any.** `= any(:list)` is `in` and `<> all(:list)` is `not in` the values of a list. `= any(array(select ...))` is
   `in` the rows of a query.
4. **Greatest.** `greatest` and `least` are `max` and `min`. Neither may be given a null: SQLite then answers null.
5. **Casts.** `cast(x as uuid)`, `json` and `jsonb` are casts to text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from holdfast.errors import StatementDrift

Dialect = Literal["sqlite", "postgres"]
Fields = Mapping[str, Sequence[str]]  # of each parameter that is a list of records

_APART = re.compile(r"'[^']*'|--[^\n]*")
_MASKED = re.compile(r"'(\d+)'")
_PART = re.compile(r"@\w+")
_ROWS = re.compile(
    r"\brows\((?P<lists>[^()]*)\)(?P<place>\s+with\s+ordinality)?\s+as\s+(?P<name>\w+)\s*\((?P<columns>[^()]*)\)"
)
_LIST = re.compile(r":([a-z_]+)")
_COLUMN = re.compile(r"(\w+)\s+(\w+)")
_LOCK = re.compile(
    r"\s+for\s+(?:update|no\s+key\s+update|share|key\s+share)\b(?:\s+of\s+\w+)?(?:\s+skip\s+locked)?\b", re.I
)
_LIST_MEMBER = re.compile(r"(= any|<> all)\((?:cast\()?(:[a-z_]+)(?: as [a-z]+\[\]\))?\)")
_QUERY_MEMBER = re.compile(r"= any\(array\(")
_GREATEST = re.compile(r"\b(greatest|least)(?=\()")
_CAST = re.compile(r"(?<= as )(?:uuid|jsonb?)(?=\))")
_OF_POSTGRES = re.compile(
    r"\b(?:for|skip\s+locked|nowait)\b|\b(?:any|all|array|unnest)\s*\(|\b(?:lateral|ctid|strpos)\b|\bwith\s+ties\b"
    r"|\bpg_\w+|(?<=\()\s*(?:insert|update|delete)\b|@>|\bcollate\b",
    re.I,
)
_OF_SQLITE = re.compile(r"\b(?:json_contains|json_value|json_each|json_group_array|instr|rowid)\b|\bindexed\s+by\b")


def spelled(text: str, fields: Fields, dialect: Dialect) -> str:
    """The text as this database spells it, without comments."""
    code, quoted = masked(text)
    if unknown := _PART.search(code):
        raise StatementDrift(f"{unknown[0]!r} is not a part of this file.")
    code = _tables(code, fields, dialect)
    if dialect == "sqlite":
        code = _members(_LOCK.sub("", code))
        code = _GREATEST.sub(lambda match: "max" if match[1] == "greatest" else "min", code)
        code = _CAST.sub("text", code)
    if left := (_OF_POSTGRES if dialect == "sqlite" else _OF_SQLITE).search(code):
        raise StatementDrift(f"no rule gives {_around(code, left)!r} to {dialect}: write a text for each database.")
    return unmasked(code, quoted)


def masked(text: str) -> tuple[str, list[str]]:
    """The text with a number in each pair of quotes and without comments, and what the quotes had in them."""
    quoted: list[str] = []

    def mask(match: re.Match[str]) -> str:
        if match[0].startswith("--"):
            return ""
        quoted.append(match[0])
        return f"'{len(quoted) - 1}'"

    return _APART.sub(mask, text), quoted


def unmasked(code: str, quoted: Sequence[str]) -> str:
    return _MASKED.sub(lambda match: quoted[int(match[1])], code)


def _members(code: str) -> str:
    code = _LIST_MEMBER.sub(
        lambda match: f"{'in' if match[1] == '= any' else 'not in'} (select value from json_each({match[2]}))", code
    )
    while found := _QUERY_MEMBER.search(code):
        end = _closing(code, found.start() + len("= any"))
        query = code[found.end() : _closing(code, found.end() - 1)]
        code = f"{code[: found.start()]}in ({query}){code[end + 1 :]}"
    return code


def _closing(code: str, opening: int) -> int:
    """Where the parenthesis that opens here is closed."""
    depth = 0
    for at in range(opening, len(code)):
        depth += (code[at] == "(") - (code[at] == ")")
        if depth == 0:
            return at
    raise StatementDrift(f"a parenthesis is not closed: {code[opening : opening + 40]!r}.")


def _around(code: str, match: re.Match[str]) -> str:
    return " ".join(code[match.start() : match.end() + 30].split())


def _tables(code: str, fields: Fields, dialect: Dialect) -> str:
    def table(match: re.Match[str]) -> str:
        return _Table.parsed(match, fields).spelled(dialect)

    code = _ROWS.sub(table, code)
    if left := re.search(r"\brows\s*\(", code):
        raise StatementDrift(f"{_around(code, left)!r} is not of the form rows(:list) as r (column type).")
    return code


class _Table(NamedTuple):
    """A use of `rows`: where each column comes from, its type and its name."""

    name: str
    lists: Sequence[str]
    columns: Sequence[tuple[str, str]]
    place: str | None
    records: bool

    @classmethod
    def parsed(cls, match: re.Match[str], fields: Fields) -> _Table:
        *columns, last = [column.strip() for column in match["columns"].split(",")]
        if not match["place"]:
            columns, last = [*columns, last], ""
        lists = [_LIST.fullmatch(given.strip()) for given in match["lists"].split(",")]
        typed = [_COLUMN.fullmatch(column) for column in columns]
        if not all(lists) or not all(typed) or not re.fullmatch(r"\w*", last):
            raise StatementDrift(f"{_around(match.string, match)!r} needs parameters, and a type for each column.")
        names = [found[1] for found in lists if found]
        made = [(found[1], found[2]) for found in typed if found]
        records = len(names) == 1 and names[0] in fields
        if records and (strange := [column for column, _ in made if column not in fields[names[0]]]):
            raise StatementDrift(f":{names[0]}.{strange[0]} is not a field of a declared list of records.")
        if not records and len(names) != len(made):
            raise StatementDrift(f"{_around(match.string, match)!r} needs one column for each list.")
        return cls(match["name"], names, made, last or None, records)

    def spelled(self, dialect: Dialect) -> str:
        return self._on_sqlite() if dialect == "sqlite" else self._on_postgres()

    def _on_postgres(self) -> str:
        values = [f"{self.lists[0]}.{column}" for column, _ in self.columns] if self.records else self.lists
        arrays = ", ".join(f"cast(:{value} as {type}[])" for value, (_, type) in zip(values, self.columns, strict=True))
        names = ", ".join([*(column for column, _ in self.columns), *([self.place] if self.place else [])])
        return f"unnest({arrays}){' with ordinality' if self.place else ''} as {self.name} ({names})"

    def _on_sqlite(self) -> str:
        first, *others = self.lists
        if self.records:
            values = [f"list.value ->> :{first}.{column} as {column}" for column, _ in self.columns]
        else:
            values = [f"{_nth('list', n)}.value as {column}" for n, (column, _) in enumerate(self.columns)]
        if self.place:
            values.append(f"list.key + 1 as {self.place}")
        beside = "".join(
            f" join json_each(:{other}) as {_nth('list', n)} on {_nth('list', n)}.key = list.key"
            for n, other in enumerate(others, 1)
        )
        return f"(select {', '.join(values)} from json_each(:{first}) as list{beside}) as {self.name}"


def _nth(name: str, n: int) -> str:
    return f"{name}_{n}" if n else name
