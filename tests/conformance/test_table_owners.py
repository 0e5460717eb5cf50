"""The list of tables by owner names statements that do what it says; see also `test_schemas_agree`."""

from __future__ import annotations

import re

import pytest

from tests.support.table_owners import OWNERS, text_of


@pytest.mark.parametrize("table", OWNERS)
def test_what_an_entry_names_is_a_statement_on_that_table(table: str) -> None:
    owner = OWNERS[table]
    for statement, verb in ((owner.pruned, "delete from|update"), (owner.erased, "delete from")):
        if not statement.startswith("not "):
            assert re.search(rf"\b({verb}) holdfast\.{table}\b", text_of(statement)), statement
    if not owner.exported.startswith("not "):
        assert re.search(rf"\bfrom holdfast\.{table}(_now)?\b", text_of(owner.exported)), owner.exported
