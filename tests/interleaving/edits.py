"""Statements of one database spelled in another way; all other databases keep theirs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from holdfast.kernel.sql import Statement


class Edit(NamedTuple):
    """Which words of a statement are said in another way; it fails loudly when they are gone."""

    statement: Statement
    old: str
    new: str = ""


def respell(database: Any, edits: Iterable[Edit]) -> None:
    statements = copy.copy(database._statements)
    for statement, old, new in edits:
        texts = tuple(" ".join(text.split()) for text in statements[statement].texts)
        if not any(old in text for text in texts):
            pytest.fail(f"{statement} no longer says {old!r}; plant the bug in its new words")
        statements[statement] = statements[statement]._replace(texts=tuple(t.replace(old, new) for t in texts))
    database._statements = statements
