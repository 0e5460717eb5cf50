"""What of a message names a kind of failure."""

from __future__ import annotations

import pytest

from holdfast.kernel.failure_groups import pattern


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no row 17", "no row <n>"),
        ("took 1.5 s at 10:15:00", "took <n> s at <n>"),
        ("job 01a1e8fe-3166-7508-97e1-c495538f0291 is gone", "job <id> is gone"),
        ("object at 0x7f3a5c0d1e20 broke", "object at <id> broke"),
        ("key user_4711_settings", "key <id>"),
        ("\n  first line\nsecond", "first line"),
        ("", ""),
        ("unconditionally", "unconditionally"),
        ("x" * 5_000, "x" * 200),
    ],
)
def test_numbers_and_ids_are_left_out(message: str, expected: str) -> None:
    assert pattern(message) == expected
