"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.durations import duration, microseconds, show
from holdfast.errors import BadSetting


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("0s", 0),
        ("1us", 1),
        ("250ms", 250_000),
        ("10s", 10_000_000),
        ("1.5s", 1_500_000),
        ("0.1s", 100_000),
        ("2m", 120_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("7d", 604_800_000_000),
        ("1w", 604_800_000_000),
        (timedelta(seconds=3, microseconds=4), 3_000_004),
        (timedelta(0), 0),
    ],
)
def test_reads(written: str | timedelta, us: int) -> None:
    assert microseconds(written) == us
    assert duration(written) == timedelta(microseconds=us)


@pytest.mark.parametrize("written", ["", "10", "s", "10 seconds", "-5s", "5s!", "1h30", "five", "1e3s", " ", "5S"])
def test_refuses_what_is_no_duration(written: str) -> None:
    with pytest.raises(BadSetting, match="is not a duration; write it like"):
        microseconds(written)


@pytest.mark.parametrize("written", [5, 1.5, None, b"5s"])
def test_refuses_what_is_neither_text_nor_timedelta(written: Any) -> None:
    with pytest.raises(BadSetting, match="a duration must be text"):
        microseconds(written)


def test_refuses_the_past() -> None:
    with pytest.raises(BadSetting, match="cannot be negative"):
        microseconds(timedelta(seconds=-1))


@given(st.integers(min_value=0, max_value=10**15))
def test_shows_what_it_reads_back(us: int) -> None:
    assert microseconds(show(us)) == us


@pytest.mark.parametrize(("us", "shown"), [(0, "0s"), (5_400_000_000, "1h30m"), (61_000_001, "1m1s1us")])
def test_shows_the_short_form(us: int, shown: str) -> None:
    assert show(us) == shown


def test_a_very_long_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadSetting, match="at most 100 characters; got 1,000,000"):
        microseconds("1" * 1_000_000)
