"""One text for two databases: what a shared statement may say, and how each database spells it.

A shared statement is written for PostgreSQL. These rules give it to SQLite, or help PostgreSQL to understand it. No
rule looks into a quoted text or a comment. If one of these words is left when all rules are applied, or a CTE that
changes rows, `StatementDrift` is raised when the statement is loaded. Other words are not checked here: the database
refuses what it does not know when the statement is prepared.

For both:

- `rows(:list) as r (id bigint, name text)` in a FROM clause is a table of what a caller sent: `unnest` of one array
  for each column on PostgreSQL, `json_each` on SQLite. If the group declares `:list` as a list of records, the columns
  are fields of its record. Otherwise `rows(:a, :b) as r (x bigint, y text)` has one plain list for each column, all of
  the same length. With `rows(...) with ordinality`, one more column at the end, without a type, numbers the rows
  from 1.

For SQLite:

- Row locks (`for update`, `for no key update`, `for share`, `for key share`, with `of x` and `skip locked`) are left
  out: SQLite has one writer, and the transaction that may write holds that lock. For the same reason
  `pg_advisory_xact_lock(...)` and `pg_sleep(...)` are null, `pg_current_xact_id()` is 0, and no transaction is older
  than `pg_snapshot_xmin(...)`. `pg_notify(...)` is null: nobody can listen to a file.
- `= any(:list)` is `in` and `<> all(:list)` is `not in` the values of a list. `= any(array(select ...))` is `in` the
  rows of a query.
- `cast(x as uuid)`, `json` and `jsonb` are casts to text.
- `greatest` and `least` are `max` and `min`. Neither may be given a null: SQLite then answers null.
- `strpos` is `instr`.
- `collate "C"` is left out: SQLite compares the bytes of texts by default.
- `fetch first :n rows with ties` in a subquery is left out: SQLite reads an index in its order, and stops at the limit
  that the query around it has.
- `ctid` is `rowid`. `ctid = any(array(select k.ctid ...))` is the primary key of a table without rowids.
- `cross join lateral (select k.x, k.y from t k where ... offset 0) as k` is a plain `cross join t k on ...`. With
  `order by ... limit :n` instead of the offset, it is a join with the rows that the query finds. It has one table,
  plain columns, and the same name inside and outside.
- A leading `with x as (insert ...)` without `returning` becomes a statement of its own, executed first. Then the rest
  sees what it wrote, so use this only where that makes no difference.
- `with x as (insert ... returning ...) select ... from x` is the insert, and returns what is selected. The triggers of
  `job` do what `, y as (insert into ready ... from x)` does after an insert into `job`, so that is left out. It must
  write what they write (`PLACED`).
- A move, `with gone as (delete from a where ... returning ...) insert into b (...) select ... from gone returning ...`,
  becomes an insert and then a delete with the same condition. What it returns must be columns of `a`. If the condition
  has a query with a limit, both must find the same rows: the query selects one column, and is ordered by it at last.
  For the same reason the condition must not read `b`.

For PostgreSQL:

- `indexed by x` is left out.
- `json_contains(x, y)` is `x @> cast(y as jsonb)`, and `json_value(x, y)` is the text of `x -> cast(y as text)`.
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
_LOCK_LEFT = re.compile(r"\b(?:for|skip\s+locked|nowait)\b", re.I)
_LIST_MEMBER = re.compile(r"(= any|<> all)\((?:cast\()?(:[a-z_]+)(?: as [a-z]+\[\]\))?\)")
_QUERY_MEMBER = re.compile(r"= any\(array\(")
_TEXT_TYPE = re.compile(r"(?<= as )(?:uuid|jsonb?)(?=\))")
_NO_OTHERS = {  # what is asked of PostgreSQL because others may write or listen at the same time
    "pg_advisory_xact_lock": "null",
    "pg_notify": "null",
    "pg_sleep": "null",
    "pg_current_xact_id": "0",
    "pg_snapshot_xmin": "9223372036854775807",
}
_ASKED_OF_OTHERS = re.compile(rf"\b({'|'.join(_NO_OTHERS)})(?=\()")
KEYS_WITHOUT_ROWID: Mapping[str, Sequence[str]] = {
    "ready": ("route", "priority", "slot", "seq"),
    "unique_key": ("scope", "key"),
}
# What the trigger on an insert into `job` writes into each column of `ready`, in the words of the new job.
PLACED: Mapping[str, str] = {
    "route": "route",
    "slot": "slot",
    "seq": "seq",
    "token": "0",
    "priority": "priority",
    "attempts": "0",
    "rescues": "0",
    "cost": "case when lane is not null then cost end",
    "deadline_at": "deadline_at",
    "lane": "lane",
    "tenant": "case when slot > 0 then tenant end",
}
_UNNAMED = {"slot": {"slot": "0", "tenant": "null"}, "lane": {"lane": "null", "cost": "null"}}  # what follows from it
_LATERAL = re.compile(r"\bcross\s+join\s+lateral\s+(?=\()")
_PROBE = re.compile(
    r"\s*select\s+(?P<columns>[^()]*?)\s+from\s+(?P<table>[\w.]+)\s+(?P<name>\w+)\s+where\s+(?P<condition>.*?)"
    r"(?P<end>\s+offset\s+0|\s+(?:order\s+by\s+[^()]*?\s+)?limit\s+:?\w+)?\s*",
    re.S,
)
_NOT_A_PROBE = re.compile(r"\b(?:order|group)\s+by\b|(?<!:)\b(?:limit|offset|having|union)\b")
_ADDRESS = re.compile(r"\bctid = any\(array\(\s*select\s+(\w+)\.ctid\b")
_NAMES_ON_SQLITE = {"greatest": "max", "least": "min", "ctid": "rowid", "strpos": "instr"}
_NAMED_OTHERWISE = re.compile(rf"\b(?:{'|'.join(_NAMES_ON_SQLITE)})\b")
_CHANGING = re.compile(r"\s*with\s+(\w+)\s+as\s+\((?=\s*(?:insert|update|delete)\b)")
_REMOVAL = re.compile(r"\s*delete\s+from\s+([\w.]+)\s+where\s+(.*?)\s+returning\s+[^()]*", re.S)
_LIMIT = re.compile(r"\s+limit\b")
_ONE_COLUMN = re.compile(r"\s*select\s+(\w+(?:\.\w+)?)\s+from\b")
_ORDER = re.compile(r"\border\s+by\b(?:.*,)?(.*)", re.S)
_PARENTHESES = re.compile(r"\([^()]*\)")
_RETURNING = re.compile(r"\breturning\b")
_PLACED = re.compile(r",\s*\w+\s+as\s+(?=\(\s*insert\s+into\s+holdfast\.ready\b)")
_NEW_JOB = re.compile(r"\s*insert\s+into\s+holdfast\.job\s+\(([^()]*)\)")
_PLACING = re.compile(r"\s*insert\s+into\s+holdfast\.ready\s+\(([^()]*)\)\s+select\s+(.*?)\s+from\s+(\w+)\s*", re.S)
_LEFT_ON_SQLITE = re.compile(
    r"\b(?:any|all|array|unnest)\s*\(|\b(?:lateral|ctid|greatest|least)\b|\bwith\s+ties\b|\bpg_\w+"
    r"|(?<=\()\s*(?:insert|update|delete)\b|@>"
)
_LEFT_ON_POSTGRES = re.compile(r"\b(?:json_contains|json_value|json_each)\b|\bindexed\s+by\b")
_BYTEWISE = re.compile(r'\s+collate\s+"C"')
_WITH_TIES = re.compile(r"\s+fetch\s+first\s+:\w+\s+rows\s+with\s+ties(?=\s*\))")
_INDEXED_BY = re.compile(r"\s+indexed\s+by\s+\w+")
_CONTAINS = re.compile(r"\bjson_contains\(([^(),]+),\s*([^(),]+)\)")
_VALUE = re.compile(r"\bjson_value\(([^(),]+),\s*([^(),]+)\)")


def spelled(text: str, fields: Fields, dialect: Dialect) -> str:
    """The text as this database spells it, without comments."""
    code, quoted = masked(text)
    if unknown := _PART.search(code):
        raise StatementDrift(f"{unknown[0]!r} is not a part of this file.")
    code = _tables(code, fields, dialect)
    code = _for_sqlite(code) if dialect == "sqlite" else _for_postgres(code)
    if left := (_LEFT_ON_SQLITE if dialect == "sqlite" else _LEFT_ON_POSTGRES).search(code):
        raise StatementDrift(f"no rule gives {_around(code, left)!r} to {dialect}.")
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


def _for_postgres(code: str) -> str:
    code = _INDEXED_BY.sub("", code)
    code = _CONTAINS.sub(r"\1 @> cast(\2 as jsonb)", code)
    return _VALUE.sub(r"cast(\1 -> cast(\2 as text) as text)", code)


def _for_sqlite(code: str) -> str:
    code = _LOCK.sub("", code)
    if left := _LOCK_LEFT.search(code):
        raise StatementDrift(f"{_around(code, left)!r} is not a row lock that can be left out on SQLite.")
    code = _joined(_alone(code))
    code = _LIST_MEMBER.sub(_list_member, _ADDRESS.sub(_address, code))
    while found := _QUERY_MEMBER.search(code):
        member = _enclosed(code, found.start() + len("= any"))
        query = _enclosed(member.text, len("array"))
        code = f"{code[: found.start()]}in ({query.text}){code[member.end + 1 :]}"
    code = _TEXT_TYPE.sub("text", _BYTEWISE.sub("", _WITH_TIES.sub("", code)))
    code = _NAMED_OTHERWISE.sub(lambda match: _NAMES_ON_SQLITE[match[0]], code)
    return _one_after_another(code)


def _list_member(match: re.Match[str]) -> str:
    return f"{'in' if match[1] == '= any' else 'not in'} (select value from json_each({match[2]}))"


def _alone(code: str) -> str:
    while found := _ASKED_OF_OTHERS.search(code):
        code = f"{code[: found.start()]}{_NO_OTHERS[found[1]]}{code[_enclosed(code, found.end()).end + 1 :]}"
    return code


def _joined(code: str) -> str:
    """Plain joins in the place of lateral ones, which SQLite does not have."""
    while found := _LATERAL.search(code):
        body = _enclosed(code, found.end())
        rest = code[body.end + 1 :]
        query = _PROBE.fullmatch(body.text)
        if query is None or not _is_probe(query) or not (called := re.match(rf"\s+as\s+{query['name']}\b", rest)):
            raise StatementDrift(f"SQLite has no lateral join, and {_around(code, found)!r} is not a probe of a table.")
        join = f"cross join {query['table']} {query['name']} on {_found(query)}"
        code = f"{code[: found.start()]}{join}{rest[called.end() :]}"
    return code


def _is_probe(query: re.Match[str]) -> bool:
    column = rf"{query['name']}\.\w+"
    plain = re.fullmatch(rf"{column}(?:,\s*{column})*", query["columns"])
    return plain is not None and not _NOT_A_PROBE.search(_without_parts(query["condition"]))


def _found(query: re.Match[str]) -> str:
    """The condition under which a row is one that the query finds."""
    condition, end = query["condition"], query["end"] or ""
    if "limit" not in end:
        return f"({condition})"
    key = _key(query["table"], query["name"])
    equals = "=" if end.endswith("limit 1") else "in"
    return f"({key}) {equals} (select {key} from {query['table']} {query['name']} where {condition}{end})"


def _key(table: str, name: str) -> str:
    columns = KEYS_WITHOUT_ROWID.get(table.removeprefix("holdfast."), ("rowid",))
    return ", ".join(f"{name}.{column}" if name else column for column in columns)


def _address(match: re.Match[str]) -> str:
    table = re.search(rf"\b(?:from|join)\s+([\w.]+)\s+{match[1]}\b", match.string[match.end() :])
    if table is None:
        raise StatementDrift(f"{_around(match.string, match)!r}: {match[1]} is not the name of a table.")
    return f"({_key(table[1], '')}) = any(array(select {_key(table[1], match[1])}"


class _Enclosed(NamedTuple):
    """What stands between two parentheses, and where the second one is."""

    text: str
    end: int


def _enclosed(code: str, opening: int) -> _Enclosed:
    depth = 0
    for at in range(opening, len(code)):
        depth += (code[at] == "(") - (code[at] == ")")
        if depth == 0:
            return _Enclosed(code[opening + 1 : at], at)
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


def _one_after_another(code: str) -> str:
    """Statements in the place of CTEs that change something, which SQLite does not have."""
    before = ""
    while found := _CHANGING.match(code):
        body = _enclosed(code, found.end() - 1)
        rest = code[body.end + 1 :].strip()
        if not _RETURNING.search(body.text):
            before += f"{body.text.strip()};\n"
            code = f"with{rest[1:]}" if rest.startswith(",") else rest
            continue
        return f"{before}{_returned(found[1], body.text, rest) or _moved(found[1], body.text, rest)}"
    return before + code


def _returned(new: str, insert: str, rest: str) -> str | None:
    """The insert whose rows the rest selects; None if it does anything else with them."""
    if (job := _NEW_JOB.match(insert)) and (placed := _PLACED.match(rest)):
        body = _enclosed(rest, placed.end())
        placing = _PLACING.fullmatch(body.text)
        if (
            placing is None
            or placing[3] != new
            or not _as_the_trigger(job[1], insert.rpartition("returning")[2], placing)
        ):
            raise StatementDrift(f"{_around(rest, placed)!r} does not write what the trigger of job writes on SQLite.")
        rest = rest[body.end + 1 :].strip()
    selected = re.fullmatch(rf"select\s+(.*?)\s+from\s+{new}", rest, re.S)
    if selected is None or not re.match(r"\s*insert\b", insert):
        return None
    return f"{insert.rpartition('returning')[0].strip()} returning {selected[1]}"


def _as_the_trigger(job: str, returning: str, placing: re.Match[str]) -> bool:
    """Whether the statement gives `ready` what the trigger gives it for a job with these columns, which is due."""
    named = _listed(job)
    expected = {**PLACED}
    for column, follows in _UNNAMED.items():
        expected |= follows if column not in named else {}
    returned = dict(_called(value) for value in _listed(returning))
    columns, values = _listed(placing[1]), _listed(placing[2])
    if "due_at" in named or len(columns) != len(values):
        return False
    placed = zip(columns, (returned.get(value, value) for value in values), strict=True)
    return dict.fromkeys(PLACED, "null") | dict(placed) == expected


def _listed(columns: str) -> list[str]:
    return [" ".join(column.split()) for column in columns.split(",")]


def _called(value: str) -> tuple[str, str]:
    """The name of a returned value, and what it is."""
    what, _, name = value.rpartition(" as ")
    return (name, what) if what else (value, value)


def _moved(gone: str, removal: str, rest: str) -> str:
    removed = _REMOVAL.fullmatch(removal)
    added = re.fullmatch(
        rf"(insert\s+into\s+[\w.]+\s+\([^()]*\)\s+select\s+.*?\s+from)\s+{gone}"
        r"(?:\s+(?!returning\b)(\w+))?(?:\s+(returning\s+.*))?",
        rest,
        re.S,
    )
    if removed is None or added is None:
        raise StatementDrift(f"SQLite has no CTE that changes rows, and {gone!r} is not part of a move.")
    table, condition = removed[1], _in_total_order(removed[2])
    into, name, returning = added.groups()
    if re.search(rf"\b{re.escape(into.split()[2])}\b", condition):
        raise StatementDrift(f"{gone!r} is chosen by {into.split()[2]}, which SQLite has changed before it deletes.")
    return (
        f"{into} {table} as {name or gone} where {condition};\n"
        f"delete from {table} where {condition} {returning or ''}".rstrip()
    )


def _in_total_order(condition: str) -> str:
    """The condition, in which each query with a limit leaves no choice between rows."""
    found = _LIMIT.search(condition)
    while found:
        query = condition[_opening(condition, found.start()) + 1 : found.start()]
        key = _ONE_COLUMN.match(query)
        if key is None:
            raise StatementDrift(f"{' '.join(query.split())!r} has a limit, so it must select one column.")
        order = _ORDER.search(_without_parts(query))
        last = f" order by {key[1]}" if order is None else "" if order[1].strip() == key[1] else f", {key[1]}"
        condition = f"{condition[: found.start()]}{last}{condition[found.start() :]}"
        found = _LIMIT.search(condition, found.end() + len(last))
    return condition


def _opening(code: str, within: int) -> int:
    """Where the parenthesis around this place opens."""
    depth = 0
    for at in range(within - 1, -1, -1):
        depth += (code[at] == ")") - (code[at] == "(")
        if depth < 0:
            return at
    raise StatementDrift(f"{' '.join(code[within:].split())!r} belongs to no query in parentheses.")


def _without_parts(query: str) -> str:
    """The query without what it has in parentheses."""
    while (shorter := _PARENTHESES.sub("", query)) != query:
        query = shorter
    return query
