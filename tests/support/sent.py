"""What this process sends to its database, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast.kernel.drivers.postgres_transaction import PostgresTransaction
from holdfast.kernel.drivers.sqlite_file import SqliteFile
from holdfast.kernel.sql import Statement


class Statements:
    """Counts statements by their names, and the elements of their lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
        self.all: set[Statement] = set()
        self.sent: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()
        where: Any = SqliteFile if dialect == "sqlite" else PostgresTransaction
        for name in ("many", "one", "run"):
            monkeypatch.setattr(where, name, self._counted(getattr(where, name)))

    def clear(self) -> None:
        self.sent.clear()
        self.listed.clear()

    def _counted(self, original: Any) -> Any:
        def counted(transaction: Any, statement: Any, **parameters: Any) -> Any:
            self.all.add(statement)
            self.sent[statement.name] += 1
            self.listed[statement.name] += sum(len(each) for each in parameters.values() if isinstance(each, list))
            return original(transaction, statement, **parameters)

        return counted
