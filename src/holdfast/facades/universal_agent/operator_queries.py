"""The queries of operators: read-only SQL on a runtime database, answered as `sqlite3` answers it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

from holdfast import validation
from holdfast.core import Core
from holdfast.kernel.bounds import READS, bound
from holdfast.kernel.drivers.ad_hoc import Parameters, answer, read_query


class Row(tuple[Any, ...]):
    """A row: its values by number, as of a tuple, or by the name of their column."""

    _columns: Sequence[str]

    @classmethod
    def of(cls, columns: Sequence[str], values: Sequence[Any]) -> Row:
        made = cls(values)
        made._columns = columns
        return made

    def keys(self) -> list[str]:
        return list(self._columns)

    @overload
    def __getitem__(self, key: str | SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: str | SupportsIndex | slice) -> Any:
        """`IndexError` when there is no such column, as `sqlite3.Row` has it."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        for name, value in zip(self._columns, self, strict=True):
            if name.lower() == key.lower():
                return value
        raise IndexError(f"there is no column {key!r:.80} among {', '.join(self._columns)}.")


class Cursor:
    """The answer to a query, from its first row on."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.description = tuple((name, None, None, None, None, None, None) for name in columns)
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def fetchone(self) -> Row | None:
        """The next row; None after the last one."""
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        """The rows that are left."""
        return list(self._rows)


async def run_query(core: Core, sql: str, parameters: Parameters) -> Cursor:
    """Ask within the bounds of reads: nothing can be changed, and it takes `web_patience` at most."""
    validation.instance(sql, "sql", str, "a text")
    database = await core.opened()
    query = read_query(sql, parameters, database.dialect)
    with bound(READS):
        found = await core.runtime().transact(answer, query, core.settings.schema)
    return Cursor(found.columns, [Row.of(found.columns, row) for row in found.rows])
