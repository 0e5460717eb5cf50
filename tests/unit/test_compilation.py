"""How processes share the compilation of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compilation import beginning_elsewhere


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_process_takes_all_files_and_begins_elsewhere(count: int) -> None:
    files = [Path(f"test_{letter}.py") for letter in "abcdefghij"]
    orders = [beginning_elsewhere(files, number, count) for number in range(count)]
    assert len({order[0] for order in orders}) == count
    assert all(sorted(order) == files for order in orders)
