"""Named SQL statements: read from `.sql` files, declared in Python, rendered for each database.

A statement without a suffix serves both databases. A forked statement has two texts, one after the other, and a
comment says why. Python declares names, cardinality and record; opening a database raises `StatementDrift` if the files
and the declarations differ. Importing this package reads no file. A layer has its own statements in its own package;
they are rendered when the first of them is used.

In a statement, `:name` is a parameter and `:rows.field` one field of a list of records: the array of that
column on PostgreSQL, the field's position in each JSON row on SQLite. `dialects` has the five rules by which one text
serves both databases. `holdfast.` is the schema.
`:columns` lists the fields of the record that the statement declares, as columns of the only table; `:columns(j)` lists
them as columns of the table `j`. It casts a `JobId` to text, and reads a field `now` from the store's clock.
`@place(j)` is the order of jobs within a route or a lane, `@arrival(j)` the order between queues, and `@ready(j)` all
columns of `ready`, each as columns of the table `j`, or without parentheses of the only table. `@fence(l)` is the
condition that the lease `l` is still the one that a worker names. `@room(l)` is how many jobs of the cost `d.cost` the
lane `l` lets start now, beside those that run; `:cap` if nothing limits them. `@nth(:rows.field as type, n)` is the
n-th value of a column, on PostgreSQL.

Text that several statements of a file share stands before them under `-- part: name`; they say `@name` in its place.
A part may have two texts, as a statement may: then only these words differ in the statements that name it.

A connection that a caller lends to Holdfast spells parameters as its library does, and may convert every `json` or
`uuid`. So such values are sent to it as text, and the server casts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from holdfast.errors import StatementDrift
from holdfast.kernel.ids import JobId

# Five rules by which one text of a statement serves both databases.
#
# The text is PostgreSQL's. Whatever needs more than these rules has a text for each database in its file, as a
# statement
# or as a part. No rule looks into a quoted text or a comment. What none of them can give to a database is refused
# with
# `StatementDrift` when the statement is loaded. Other words are not checked here: the database refuses what it does
# not
# know when the statement is prepared.
#
# 1. **Rows.** `rows(:list) as r (id bigint, name text)` in a FROM clause is a table of what a caller sent: `unnest`
# of
#    one array for each column on PostgreSQL, `json_each` on SQLite. If the group declares `:list` as a list of
#    records,
#    the columns are fields of its record. Otherwise `rows(:a, :b) as r (x bigint, y text)` has one plain list for
#    each
#    column, all of the same length. With `rows(...) with ordinality`, one more column at the end, without a type,
#    numbers the rows from 1.
#
# On SQLite only:
#
# 2. **Locks.** Row locks (`for update`, `for no key update`, `for share`, `for key share`, with `of x` and `skip
# locked`)
#    are left out: SQLite has one writer, and the transaction that may write holds that lock.
# 3. **Any.** `= any(:list)` is `in` and `<> all(:list)` is `not in` the values of a list. `= any(array(select ...))`
# is
#    `in` the rows of a query.
# 4. **Greatest.** `greatest` and `least` are `max` and `min`. Neither may be given a null: SQLite then answers null.
# 5. **Casts.** `cast(x as uuid)`, `json` and `jsonb` are casts to text.


Dialect = Literal["sqlite", "postgres"]
Fields = Mapping[str, Sequence[str]]  # of each parameter that is a list of records

_APART = re.compile(r"'[^']*'|--[^\n]*")
_MASKED = re.compile(r"'(\d+)'")
_UNKNOWN_PART = re.compile(r"@\w+")
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
    if unknown := _UNKNOWN_PART.search(code):
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


Style = Literal["dollar", "pyformat"]  # how a lent connection spells a parameter: $1, or %(p1)s
T = TypeVar("T", bound=tuple[Any, ...])

_HEADER = re.compile(
    r"^-- (?:part: (?P<part>\w+)|name: (?P<name>\w+) :(?P<many>many|one|exec))(?: on (?P<dialect>sqlite|postgres))?$"
)
# A slot is a turn among the tenants of one fair queue. Slots of different queues do not compare: in a queue that is not
# fair all jobs have slot 0, and a fair queue would always come after it.
_LISTS = {
    "place": ("priority", "slot", "seq"),
    "arrival": ("priority", "seq"),
    "ready": (
        *("route", "slot", "seq", "token", "priority", "attempts"),
        *("rescues", "cost", "deadline_at", "lane", "tenant"),
    ),
}
# A lease as its worker names it. Because of `+ 0` every plan finds the row by its primary key. By the index of workers
# it would read each lease that the worker has had since the last VACUUM.
_FENCE = "{0}seq = :seq and {0}worker + 0 = :worker and {0}epoch = :epoch and {0}token = :token"
# What `lanes.admit` would let through: as many as may run beside those that do, and as the rate lets start, which has
# run empty at `free_at`. Below 0 if more run than may. `opens_at` does not say it: a lane that has just let jobs
# through opens later for the next ones.
_ROOM = """least(
    case when {0}.concurrency is null then :cap
        else {0}.concurrency - (select count(*) from holdfast.lease h where h.lane = {0}.name) end,
    case when {0}.interval_us is null then :cap
        else (greatest({0}.burst, d.cost) * {0}.interval_us - greatest(0, {0}.free_at
            - case when {0}.charged_at > holdfast.now_us() then {0}.charged_at else holdfast.now_us() end))
            / (d.cost * {0}.interval_us) end)"""
# One value of a list that is sent with the sorted list `:seqs`, or the only value if all are equal. A plan for a join
# could read one list for each entry of the other.
_NTH = re.compile(r"@nth\((:[a-z_.]+) as (\w+), (\w+(?:\([^()]*(?:\([^()]*\))?[^()]*\))?)\)")
_MACRO = re.compile(rf"@({'|'.join(_LISTS)}|fence|room)\b(?:\((\w+)\))?")
_PART = re.compile(r"(^ +|)@(\w+)", re.M)
_COMMENTS = re.compile(r"^(?:--[^\n]*\n)+")
_SCHEMA = re.compile(r"\bholdfast\.")
_COLUMNS = re.compile(r":columns\b(?:\((\w+)\))?")
_LIST_AS_TEXT = re.compile(r"cast\((:[a-z_.]+) as (json|jsonb|uuid)\[\]\)")
_PLACEHOLDER: Mapping[Style, str] = {"dollar": "${}", "pyformat": "%(p{})s"}
NO_ROWS: Mapping[str, type[tuple[Any, ...]]] = {}
NO_TYPES: Mapping[str, str] = {}
_TOKEN = re.compile(r"'[^']*'|--[^\n]*|(?<![:\w]):(?P<name>[a-z_]+)(?:\.(?P<field>[a-z_]+))?")


@dataclass(frozen=True, slots=True)
class Statement:
    """A name declared in Python, to be found in `file`."""

    file: str
    name: str

    cardinality: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


@dataclass(frozen=True, slots=True)
class Many(Statement, Generic[T]):
    record: type[T]
    cardinality = "many"


@dataclass(frozen=True, slots=True)
class One(Statement, Generic[T]):
    record: type[T]
    cardinality = "one"


@dataclass(frozen=True, slots=True)
class Exec(Statement):
    cardinality = "exec"


class Statements:
    """The statements of one file: `class Jobs(Statements, file="jobs.sql"): claim: Many[Lease]`.

    `package` has the file, if it is not in this one.

    `rows` names the parameters that are lists of records, and the record of each. `types` names the parameters
    that PostgreSQL takes as `json` or `uuid` without a cast that says so.
    """

    declared: ClassVar[dict[str, Statement]]
    file: ClassVar[str]
    package: ClassVar[str]
    rows: ClassVar[dict[str, tuple[str, ...]]]
    types: ClassVar[Mapping[str, str]]

    def __init_subclass__(
        cls,
        *,
        file: str,
        package: str = __name__,
        rows: Mapping[str, type[tuple[Any, ...]]] = NO_ROWS,
        types: Mapping[str, str] = NO_TYPES,
    ) -> None:
        cls.declared, cls.file, cls.package, cls.types = {}, file, package, types
        cls.rows = {name: record._fields for name, record in rows.items()}  # type: ignore[attr-defined]
        for name, hint in get_type_hints(cls, localns={"Exec": Exec}).items():
            if get_origin(hint) is ClassVar:
                continue
            kind = get_origin(hint) or hint
            arguments = get_args(hint)
            statement = kind(file, name, *arguments)
            cls.declared[name] = statement
            _GROUP_OF[statement] = cls
            setattr(cls, name, statement)


_GROUP_OF: dict[Statement, type[Statements]] = {}


def groups_of(*modules: str) -> tuple[type[Statements], ...]:
    """Every group that these modules define: a list written by hand could miss one."""
    return tuple(made for made in Statements.__subclasses__() if made.__module__ in modules)


class Parameter(NamedTuple):
    """A parameter, or with `position` one column of a list of records."""

    name: str
    position: int | None


class Rendered(NamedTuple):
    """What a driver executes: on SQLite possibly several texts, all with the same parameters."""

    texts: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    def arguments(self, given: Mapping[str, Any]) -> list[Any]:
        """The given values in the order of the parameters."""
        return [
            given[name] if position is None else _column(given[name], position) for name, position in self.parameters
        ]


class UniformRecords(list[T]):
    """Records that are equal in most columns: of an equal column PostgreSQL gets only one value.

    Only for a statement that uses this value for all of them. `coalesce` does not work if the column may be null.
    """


def _column(rows: Sequence[tuple[Any, ...]], position: int) -> list[Any]:
    column = [row[position] for row in rows]
    if rows and isinstance(rows, UniformRecords) and column.count(column[0]) == len(column):
        return column[:1]
    return column


class Source(NamedTuple):
    """One statement as its file spells it, with its macros expanded."""

    name: str
    cardinality: str
    dialect: Dialect | None
    text: str


@cache
def sources(file: str, package: str = __name__) -> tuple[Source, ...]:
    text = resources.files(package).joinpath(file).read_text("utf-8")
    found: list[Source] = []
    parts: dict[Dialect, dict[str, str]] = {dialect: {} for dialect in get_args(Dialect)}
    lines: list[str] = []
    header: re.Match[str] | None = None
    for line in [*text.splitlines(), "-- name: end :exec"]:
        match = _HEADER.match(line)
        if match is None:
            lines.append(line)
            continue
        if header is not None:
            body = "\n".join(lines).strip().rstrip(";")
            texts = {
                dialect: _without_macros(body, known)
                for dialect, known in parts.items()
                if header["dialect"] in (None, dialect)
            }
            if header["part"]:
                for dialect, part in texts.items():
                    parts[dialect][header["part"]] = _COMMENTS.sub("", part)
            elif len(set(texts.values())) == 1 and header["dialect"] is None:
                found.append(Source(header["name"], header["many"], None, texts["postgres"]))
            else:
                found += [Source(header["name"], header["many"], *each) for each in texts.items()]
        header, lines = match, []
    return tuple(found)


def _without_macros(text: str, parts: Mapping[str, str]) -> str:
    text = _PART.sub(lambda match: _indented(parts.get(match[2], f"@{match[2]}"), match[1]), text)
    text = _MACRO.sub(_expanded, text)
    return _NTH.sub(r"(cast(\1 as \2[]))[least(cardinality(cast(\1 as \2[])), \3)]", text)


def _indented(part: str, indent: str) -> str:
    return indent + part.replace("\n", f"\n{indent}")


def _expanded(match: re.Match[str]) -> str:
    name, table = match.groups()
    if name == "fence":
        return _FENCE.format(f"{table}." if table else "")
    if name == "room":
        return _ROOM.format(table)
    return ", ".join(f"{table}.{column}" if table else column for column in _LISTS[name])


@cache
def catalogue(
    groups: tuple[type[Statements], ...], dialect: Dialect, schema: str, lent: Style | None = None
) -> Mapping[Statement, Rendered]:
    """Every declared statement, rendered for one database; raise `StatementDrift` when files disagree.

    With `lent`, for a caller's PostgreSQL connection that spells parameters in this style.
    """
    rendered = _Catalogue(dialect, schema, lent)
    for group in groups:
        rendered.update(_bind(group, dialect, schema, lent))
    return rendered


class _Catalogue(dict[Statement, Rendered]):
    """Renders the statements of other groups when one of them is asked for."""

    def __init__(self, dialect: Dialect, schema: str, lent: Style | None) -> None:
        super().__init__()
        self._place = dialect, schema, lent
        self._others: dict[Statement, Rendered] = {}

    def __missing__(self, statement: Statement) -> Rendered:
        if statement not in self._others:
            self._others.update(_bind(_GROUP_OF[statement], *self._place))
        return self._others[statement]


def _bind(group: type[Statements], dialect: Dialect, schema: str, lent: Style | None) -> dict[Statement, Rendered]:
    written = [source for source in sources(group.file, group.package) if source.dialect in (None, dialect)]
    names = [source.name for source in written]
    if extra := sorted(set(names) ^ set(group.declared)):
        raise StatementDrift(f"{group.file} and {group.__name__} disagree on {dialect} about: {', '.join(extra)}.")
    if len(names) != len(set(names)):
        raise StatementDrift(f"{group.file} spells a statement twice for {dialect}.")
    _refuse_uneven_forks(group)
    rendered: dict[Statement, Rendered] = {}
    for source in written:
        statement = group.declared[source.name]
        if statement.cardinality != source.cardinality:
            raise StatementDrift(f"{statement} is :{source.cardinality} in SQL and {statement.cardinality} in Python.")
        try:
            text = _with_columns(source.text, statement)
            rendered[statement] = (
                render(text, group.rows, dialect, schema)
                if lent is None
                else render_lent(text, group.rows, group.types, schema, lent)
            )
        except StatementDrift as drift:
            raise StatementDrift(f"{statement}: {drift}") from drift
    return rendered


def _with_columns(text: str, statement: Statement) -> str:
    code, quoted = masked(text)
    if not _COLUMNS.search(code):
        return text
    if not isinstance(statement, One | Many):
        raise StatementDrift(":columns has no meaning where no record is declared.")
    hints = get_type_hints(statement.record)

    def columns(match: re.Match[str]) -> str:
        table = f"{match[1]}." if match[1] else ""
        return ", ".join(_column_of(f"{table}{name}", name, hint) for name, hint in hints.items())

    return unmasked(_COLUMNS.sub(columns, code), quoted)


def _column_of(column: str, name: str, hint: Any) -> str:
    if name == "now":
        return "holdfast.now_us() as now"
    return f"cast({column} as text) as {name}" if JobId in (hint, *get_args(hint)) else column


def _refuse_uneven_forks(group: type[Statements]) -> None:
    seen: dict[str, set[str]] = {}
    for source in sources(group.file, group.package):
        names = {p.name for p in parameters(source.text, group.rows)} - {"columns"}
        if seen.setdefault(source.name, names) != names:
            raise StatementDrift(f"the two spellings of {source.name} in {group.file} take different parameters.")


def parameters(text: str, rows: Mapping[str, Sequence[str]]) -> list[Parameter]:
    """The parameters of a statement, each once, in the order of their first appearance."""
    found = [_parameter(match, rows) for match in _TOKEN.finditer(text) if match["name"]]
    return list(dict.fromkeys(found))


def render(text: str, rows: Mapping[str, Sequence[str]], dialect: Dialect, schema: str) -> Rendered:
    text = spelled(text, rows, dialect)
    found = parameters(text, rows)
    if dialect == "postgres":
        numbers = {parameter: f"${number}" for number, parameter in enumerate(found, 1)}
        return Rendered((in_schema(_spell(text, rows, numbers), dialect, schema),), tuple(found))
    text = _TOKEN.sub(lambda m: str(_parameter(m, rows).position) if m["field"] else m[0], text)
    return Rendered(tuple(split(in_schema(text, dialect, schema))), tuple(found))


def render_lent(
    text: str, rows: Mapping[str, Sequence[str]], types: Mapping[str, str], schema: str, style: Style
) -> Rendered:
    """The statement for a caller's PostgreSQL connection."""
    text = spelled(text, rows, "postgres")
    found = parameters(text, rows)
    places: dict[Parameter, str] = {}
    for number, parameter in enumerate(found, 1):
        places[parameter] = _PLACEHOLDER[style].format(number)
        if parameter.position is None and parameter.name in types:
            places[parameter] = f"cast(cast({places[parameter]} as text) as {types[parameter.name]})"
    if style == "pyformat":
        text = text.replace("%", "%%")
    text = _spell(_LIST_AS_TEXT.sub(r"cast(cast(\1 as text[]) as \2[])", text), rows, places)
    return Rendered((in_schema(text, "postgres", schema),), tuple(found))


def in_schema(text: str, dialect: Dialect, schema: str) -> str:
    return _SCHEMA.sub(f"{schema}." if dialect == "postgres" else "", text)


def split(script: str) -> list[str]:
    """The statements of a script; a semicolon at a line's end closes one."""
    return [part for part in (p.strip() for p in re.split(r";[ \t]*(?:\n|$)", script)) if part]


def _parameter(match: re.Match[str], rows: Mapping[str, Sequence[str]]) -> Parameter:
    name, field = match["name"], match["field"]
    if field is None:
        return Parameter(name, None)
    if field not in rows.get(name, ()):
        raise StatementDrift(f":{name}.{field} is not a field of a declared list of records.")
    return Parameter(name, rows[name].index(field))


def _spell(text: str, rows: Mapping[str, Sequence[str]], places: Mapping[Parameter, str]) -> str:
    return _TOKEN.sub(lambda m: places[_parameter(m, rows)] if m["name"] else m[0], text)
