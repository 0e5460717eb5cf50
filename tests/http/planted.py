"""Routes and statements that no release has: what the web must withstand if somebody adds one by mistake."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.http.api.routes import Handler, Routes
from holdfast.http.app import NOUNS
from holdfast.http.security.roles import TABLE, Rule
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.sql import One, Statements


class Count(NamedTuple):
    n: int


class PlantedSql(Statements, package="tests.http.sql", file="planted.sql"):
    endless: One[Count]
    count_runs: One[Count]


@reading
async def endless(tx: Transaction) -> None:
    await tx.one(PlantedSql.endless)


@reading
async def count_runs(tx: Transaction) -> int:
    """Of all tenants: its WHERE is missing."""
    found = await tx.one(PlantedSql.count_runs)
    assert found is not None
    return found.n


async def ask(hf: Holdfast, operation: Any, *args: Any, **options: Any) -> Any:
    return await core_of(hf).runtime().transact(operation, *args, **options)


def plant(monkeypatch: pytest.MonkeyPatch, path: str, function: Handler) -> None:
    """Let apps that are made from now on answer GET at this path."""
    routes = Routes("planted")
    routes.get(path)(function)
    monkeypatch.setattr("holdfast.http.app.NOUNS", [*NOUNS, routes])
    monkeypatch.setitem(TABLE, f"GET {path}", Rule("viewer"))
