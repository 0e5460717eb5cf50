"""Named SQL statements: read from `.sql` files, declared in Python, rendered for each database.

A statement without suffix serves both databases; a forked one stands twice, adjacent, with a line that says
why. Python declares names, cardinality and record; opening a database refuses any drift between the two.
Importing this package reads no file. A layer above has statements of its own in a package of its own; those are
rendered when the first of them is used.

In a statement, `:name` is a parameter and `:rows.field` one field of a list of records: the array of that
column on PostgreSQL, the field's position in each JSON row on SQLite. `= any(:list)` tests membership on both.
`holdfast.` is the schema. `@place(j)` is the order of jobs within a route or a lane, `@arrival(j)` that between queues,
each as columns of the table `j`; without parentheses, of the only table there is.

A connection that a caller lends us has its own ways: it spells parameters as its library does, and it may turn
every `json` or `uuid` into something else. So there such values travel as text, and are cast by the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from holdfast.errors import StatementDrift

Dialect = Literal["sqlite", "postgres"]
Style = Literal["dollar", "pyformat"]  # how a lent connection spells a parameter: $1, or %(p1)s
T = TypeVar("T", bound=tuple[Any, ...])

_HEADER = re.compile(r"^-- name: (?P<name>\w+) :(?P<many>many|one|exec)(?: on (?P<dialect>sqlite|postgres))?$")
# A slot is a turn among the tenants of one fair queue. It says nothing about another queue, where all may be of slot 0:
# compared with those, a fair queue would never have its turn.
_ORDERS = {"place": ("priority", "slot", "seq"), "arrival": ("priority", "seq")}
_ORDER = re.compile(rf"@({'|'.join(_ORDERS)})\b(?:\((\w+)\))?")
_SCHEMA = re.compile(r"\bholdfast\.")
_MEMBER = re.compile(r"= any\((?:cast\()?(:[a-z_]+)(?: as [a-z]+\[\]\))?\)")
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

    `package` is where the file is, if not here.

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


class Parameter(NamedTuple):
    """A parameter, or with `position` one column of a list of records."""

    name: str
    position: int | None


class Rendered(NamedTuple):
    """What a driver executes: on SQLite possibly several texts, all with the same parameters."""

    texts: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    def arguments(self, given: Mapping[str, Any]) -> list[Any]:
        """What is given by name, in the order of the parameters."""
        return [
            given[name] if position is None else _column(given[name], position) for name, position in self.parameters
        ]


class Alike(list[T]):
    """Records that agree in most columns: PostgreSQL is sent such a column one value long.

    Only for a statement that takes this value for all of them. `coalesce` will not do where a column may be null.
    """


def _column(rows: Sequence[tuple[Any, ...]], position: int) -> list[Any]:
    column = [row[position] for row in rows]
    if rows and isinstance(rows, Alike) and column.count(column[0]) == len(column):
        return column[:1]
    return column


class Source(NamedTuple):
    """One statement as its file spells it, but for the orders that have a name."""

    name: str
    cardinality: str
    dialect: Dialect | None
    text: str


@cache
def sources(file: str, package: str = __name__) -> tuple[Source, ...]:
    text = resources.files(package).joinpath(file).read_text("utf-8")
    found: list[Source] = []
    lines: list[str] = []
    header: re.Match[str] | None = None
    for line in [*text.splitlines(), "-- name: end :exec"]:
        match = _HEADER.match(line)
        if match is None:
            lines.append(line)
            continue
        if header is not None:
            body = _ORDER.sub(_ordered, "\n".join(lines).strip().rstrip(";"))
            found.append(Source(header["name"], header["many"], header["dialect"], body))  # type: ignore[arg-type]
        header, lines = match, []
    return tuple(found)


def _ordered(match: re.Match[str]) -> str:
    order, table = match.groups()
    return ", ".join(f"{table}.{column}" if table else column for column in _ORDERS[order])


@cache
def catalogue(
    groups: tuple[type[Statements], ...], dialect: Dialect, schema: str, lent: Style | None = None
) -> Mapping[Statement, Rendered]:
    """Every declared statement, rendered for one database; raise `StatementDrift` when files disagree.

    With `lent`, for a PostgreSQL connection of somebody else's that spells parameters in this style.
    """
    rendered = _Catalogue(dialect, schema, lent)
    for group in groups:
        rendered.update(_bind(group, dialect, schema, lent))
    return rendered


class _Catalogue(dict[Statement, Rendered]):
    """Has the statements of other groups too, for those who ask for one."""

    def __init__(self, dialect: Dialect, schema: str, lent: Style | None) -> None:
        super().__init__()
        self._place = dialect, schema, lent
        self._others: dict[Statement, Rendered] = {}

    def __missing__(self, statement: Statement) -> Rendered:
        if statement not in self._others:
            self._others.update(_bind(_GROUP_OF[statement], *self._place))
        return self._others[statement]


def _bind(group: type[Statements], dialect: Dialect, schema: str, lent: Style | None) -> dict[Statement, Rendered]:
    spelled = [source for source in sources(group.file, group.package) if source.dialect in (None, dialect)]
    names = [source.name for source in spelled]
    if extra := sorted(set(names) ^ set(group.declared)):
        raise StatementDrift(f"{group.file} and {group.__name__} disagree on {dialect} about: {', '.join(extra)}.")
    if len(names) != len(set(names)):
        raise StatementDrift(f"{group.file} spells a statement twice for {dialect}.")
    _refuse_uneven_forks(group)
    rendered: dict[Statement, Rendered] = {}
    for source in spelled:
        statement = group.declared[source.name]
        if statement.cardinality != source.cardinality:
            raise StatementDrift(f"{statement} is :{source.cardinality} in SQL and {statement.cardinality} in Python.")
        rendered[statement] = (
            render(source.text, group.rows, dialect, schema)
            if lent is None
            else render_lent(source.text, group.rows, group.types, schema, lent)
        )
    return rendered


def _refuse_uneven_forks(group: type[Statements]) -> None:
    seen: dict[str, set[str]] = {}
    for source in sources(group.file, group.package):
        names = {p.name for p in parameters(source.text, group.rows)}
        if seen.setdefault(source.name, names) != names:
            raise StatementDrift(f"the two spellings of {source.name} in {group.file} take different parameters.")


def parameters(text: str, rows: Mapping[str, Sequence[str]]) -> list[Parameter]:
    """The parameters of a statement, each once, in the order of their first appearance."""
    found = [_parameter(match, rows) for match in _TOKEN.finditer(text) if match["name"]]
    return list(dict.fromkeys(found))


def render(text: str, rows: Mapping[str, Sequence[str]], dialect: Dialect, schema: str) -> Rendered:
    found = parameters(text, rows)
    if dialect == "postgres":
        numbers = {parameter: f"${number}" for number, parameter in enumerate(found, 1)}
        return Rendered((in_schema(_spell(text, rows, numbers), dialect, schema),), tuple(found))
    text = _MEMBER.sub(r"in (select value from json_each(\1))", text)
    text = _TOKEN.sub(lambda m: str(_parameter(m, rows).position) if m["field"] else _uncommented(m), text)
    return Rendered(tuple(split(in_schema(text, dialect, schema))), tuple(found))


def render_lent(
    text: str, rows: Mapping[str, Sequence[str]], types: Mapping[str, str], schema: str, style: Style
) -> Rendered:
    """The statement for a PostgreSQL connection of somebody else's."""
    found = parameters(text, rows)
    spelled: dict[Parameter, str] = {}
    for number, parameter in enumerate(found, 1):
        spelled[parameter] = _PLACEHOLDER[style].format(number)
        if parameter.position is None and parameter.name in types:
            spelled[parameter] = f"cast(cast({spelled[parameter]} as text) as {types[parameter.name]})"
    if style == "pyformat":
        text = text.replace("%", "%%")
    text = _spell(_LIST_AS_TEXT.sub(r"cast(cast(\1 as text[]) as \2[])", text), rows, spelled)
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


def _spell(text: str, rows: Mapping[str, Sequence[str]], spelled: Mapping[Parameter, str]) -> str:
    return _TOKEN.sub(lambda m: spelled[_parameter(m, rows)] if m["name"] else _uncommented(m), text)


def _uncommented(match: re.Match[str]) -> str:
    return "" if match[0].startswith("--") else match[0]
