"""Retry policies: an attempt's number in, a delay out."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadSetting
from holdfast.kernel.retry import Backoff, RetryPolicy

SECOND_US = 1_000_000


def pauses(policy: RetryPolicy, attempts: int = 6) -> list[float]:
    chance = random.Random(1)
    return [policy.delay_us(attempt, chance) / SECOND_US for attempt in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        ("constant", [2, 2, 2, 2, 2, 2]),
        ("exponential", [2, 4, 8, 16, 32, 60]),
        ("quartic", [2, 32, 60, 60, 60, 60]),
    ],
)
def test_each_backoff_grows_in_its_way_up_to_the_cap(backoff: Backoff, expected: list[float]) -> None:
    assert pauses(RetryPolicy(backoff=backoff, base="2s", cap="1m", jitter=0)) == expected


def test_quartic_is_the_fourth_power_of_the_attempt() -> None:
    assert pauses(RetryPolicy(backoff="quartic", jitter=0), 5) == [1, 16, 81, 256, 625]


def test_jitter_spreads_to_both_sides() -> None:
    policy = RetryPolicy(backoff="constant", base="100s", jitter=0.1)
    chance = random.Random(7)
    delays = [policy.delay_us(1, chance) / SECOND_US for _ in range(1_000)]
    assert 90 <= min(delays) < 92
    assert 108 < max(delays) <= 110


@given(
    st.integers(min_value=1, max_value=10_000),
    st.sampled_from(["constant", "exponential", "quartic"]),
    st.floats(min_value=0, max_value=1),
    st.integers(),
)
def test_no_pause_is_negative_or_beyond_the_cap(attempt: int, backoff: Backoff, jitter: float, seed: int) -> None:
    policy = RetryPolicy(backoff=backoff, base="1s", cap="1h", jitter=jitter)
    assert 0 <= policy.delay_us(attempt, random.Random(seed)) <= 3_600 * SECOND_US


def test_chance_is_the_callers() -> None:
    policy = RetryPolicy(jitter=0.5)
    assert policy.delay_us(3, random.Random(5)) == policy.delay_us(3, random.Random(5))


def test_none_means_one_attempt() -> None:
    assert RetryPolicy.none().attempts == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"attempts": 10**12}, "attempts must be at most 2,147,483,647; got 1000000000000"),
        ({"backoff": "linear"}, "constant, exponential or quartic"),
        ({"jitter": 1.5}, "between 0 and 1"),
        ({"jitter": -0.1}, "between 0 and 1"),
        ({"base": "soon"}, "not a duration"),
        ({"cap": 5}, "a duration must be text"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        RetryPolicy(**changes)
