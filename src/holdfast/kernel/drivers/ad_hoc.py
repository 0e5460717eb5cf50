"""Ad hoc queries: SQL that somebody else has written, which may read and do nothing else.

They run within `bounds.READS`: over a connection that writes nothing, and for so long at most. What a query leaves
behind in its session, such as a setting, is undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.kernel.database import Transaction
from holdfast.kernel.sql import Dialect
from holdfast.text import plural

MOST = 10_000  # rows of an answer
_VERBS = ("SELECT", "WITH", "VALUES", "EXPLAIN")
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|::|(?P<end>;)|(?P<place>\?)|:(?P<name>[a-z_]\w*)""",
    re.I | re.S,
)
_BLANK = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/)*", re.S)
_OPENING = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/|\()*", re.S)

Parameters = Sequence[Any] | Mapping[str, Any]


class AdHocQuery(NamedTuple):
    """One statement that reads, with its values in the order of their places."""

    text: str
    values: Sequence[Any]


class Answer(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]


def read_query(sql: str, parameters: Parameters, dialect: Dialect) -> AdHocQuery:
    """A query as its database takes it; `UsageError` when it is not one statement that reads.

    Values stand for `?` in a sequence, or for `:name` in a mapping. Without any, the text is taken as it is.
    """
    _require_reading(sql)
    values: list[Any] = []

    def replace(token: re.Match[str]) -> str:
        if token["end"]:
            if not _BLANK.fullmatch(sql, token.end()):
                raise UsageError("a query is one statement, and this one continues after a semicolon.")
            return ""
        place = token["name"] if isinstance(parameters, Mapping) else token["place"]
        if not parameters or place is None:
            return token[0]
        values.append(_value(place, parameters, len(values)))
        return "?" if dialect == "sqlite" else f"${len(values)}"

    text = _TOKEN.sub(replace, sql)
    if not isinstance(parameters, Mapping) and len(values) < len(parameters):
        raise _miscounted(parameters)
    return AdHocQuery(text, values)


def _require_reading(sql: str) -> None:
    """Refuse by its first word what is not a query. What a query does beyond that the database refuses."""
    opening = _OPENING.match(sql)
    word = re.match(r"\w*", sql[opening.end() :] if opening else sql)
    verb = "" if word is None else word[0].upper()
    if verb not in _VERBS:
        raise UsageError(f"a query begins with {', '.join(_VERBS)}, not with {verb[:40]!r}: it changes nothing here.")


def _value(place: str, parameters: Parameters, number: int) -> Any:
    if isinstance(parameters, Mapping):
        if place not in parameters:
            raise UsageError(f"the query names :{place}, and no value of that name was given.")
        return parameters[place]
    if number >= len(parameters):
        raise _miscounted(parameters)
    return parameters[number]


def _miscounted(parameters: Parameters) -> UsageError:
    return UsageError(f"the query has another number of places (?) than values: {plural(len(parameters), 'value')}.")


async def answer(tx: Transaction, query: AdHocQuery, schema: str) -> Answer:
    """Run a query; `UsageError` when it would change something, is wrong, or has too many rows."""
    from holdfast.kernel.drivers.sqlite_file import SqliteFile

    if isinstance(tx, SqliteFile):
        columns, rows = tx.ask(query.text, query.values, MOST + 1)
    else:
        from holdfast.kernel.drivers.postgres_transaction import PostgresTransaction

        assert isinstance(tx, PostgresTransaction)
        columns, rows = await tx.ask(query.text, query.values, schema, MOST + 1)
    if len(rows) > MOST:
        raise UsageError(f"the query has more than {MOST:,} rows: ask for less, as with LIMIT.")
    return Answer(columns, rows)
