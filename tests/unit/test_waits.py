"""Waits: every time in which nobody had the job is explained, and only once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.agents.api.waterfall import HeldInterval, Interval, KnownInterval, WaitInterval, waits

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def held(
    begin: float, end: float | None, outcome: str | None = None, message: str = "", type: str = "snoozed"
) -> HeldInterval:
    return HeldInterval(
        worker="w1",
        outcome=outcome,
        error_type=type,
        message=message,
        started_at=at(begin),
        ended_at=None if end is None else at(end),
    )


def told(*found: WaitInterval) -> list[tuple[str, float, float | None]]:
    return [
        (each.cause, since(each.started_at), None if each.ended_at is None else since(each.ended_at)) for each in found
    ]


def since(moment: datetime) -> float:
    return (moment - BEGIN).total_seconds()


def test_time_without_a_worker_is_a_wait_and_time_with_one_is_not() -> None:
    found = waits(at(0), at(10), at(20), [held(2, 4, "parked"), held(7, 10, "succeeded")])
    assert told(*found) == [("queue", 0, 2), ("queue", 4, 7)]


def test_a_lost_worker_is_named_as_the_reason() -> None:
    (_, wait) = waits(at(0), at(10), at(20), [held(1, 4, "lost"), held(6, 10, "succeeded")])
    assert wait.reason == "worker w1 was lost, and no other had taken it yet"


def test_a_snooze_says_what_it_waited_for() -> None:
    provider = held(0, 2, "snoozed", "the provider failed: budget_tokens is over its budget")
    found = waits(at(0), at(9), at(9), [provider, held(3, 4, "snoozed", "all is spent", "over_budget")])
    assert told(*found) == [("lane", 2, 3), ("budget", 4, 9)]


def test_what_is_known_comes_before_what_is_guessed() -> None:
    person = KnownInterval("person", "asked", at(3), at(6))
    found = waits(at(0), at(10), at(20), [held(0, 2, "parked"), held(8, 10, "succeeded")], known=[person])
    assert told(*found) == [("queue", 2, 3), ("person", 3, 6), ("queue", 6, 8)]


def test_a_wait_that_lasts_has_no_end_and_says_what_holds_it_now() -> None:
    found = waits(at(0), None, at(5), [held(0, 1, "parked")], open_reason=("lane", "the lane is closed"))
    assert [(each.cause, each.reason, each.ended_at) for each in found] == [("lane", "the lane is closed", None)]


def test_where_others_worked_nothing_was_waited_for() -> None:
    found = waits(at(0), at(10), at(10), [held(0, 1, "parked")], busy=[Interval(at(1), at(9.9))])
    assert told(*found) == [("queue", 9.9, 10)]


def test_a_wait_of_less_than_a_millisecond_is_none() -> None:
    assert waits(at(0), at(1), at(1), [held(0.0005, 1)]) == []
