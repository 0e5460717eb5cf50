"""How many workers a pool should have: by what is seen, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadSetting, UsageError
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.pools import PoolSnapshot
from holdfast.kernel.rows import PastWorker
from holdfast.pools.size import WorkerPool, busy_workers, desired_workers, judge, policy_of, trouble_of

NOW = 1_000_000_000_000
SECOND = 1_000_000


def worker(seq: int, status: str = "active", *, leases: int = 0, idle_s: float | None = 0.0) -> WorkerRow:
    idle_since = None if idle_s is None or leases else NOW - round(idle_s * SECOND)
    who = (seq, f"w{seq}", "mill", "here", 1, "", status, "[]", "null", 2, leases, 1)
    return WorkerRow(*who, NOW, NOW, SECOND, None, None, NOW, leases, idle_since=idle_since)


def past(
    seq: int, status: str, *, lived_s: float = 0.0, boot_by: int = 1, pid: int = 7, ago_s: float = 0.0
) -> PastWorker:
    stopped = NOW - round(ago_s * SECOND)
    started = stopped - round(lived_s * SECOND)
    return PastWorker(
        seq, status, pid, started, stopped if status in ("lost", "stopped") else None, boot_by, f"why {seq}", NOW
    )


def sight(pending: int, *workers: WorkerRow, past: tuple[PastWorker, ...] = ()) -> PoolSnapshot:
    return PoolSnapshot(pending, workers, past)


def pool(**options: Any) -> WorkerPool:
    return WorkerPool(**{"slots": 2, **options})


@pytest.mark.parametrize(
    ("options", "pending", "workers", "start"),
    [
        ({"min": 2}, 0, (), 2),
        ({"min": 1, "max": 4}, 4, (worker(1),), 0),  # below the threshold of 5
        ({"min": 1, "max": 4}, 5, (worker(1),), 2),  # ceil(5 / 2) = 3
        ({"min": 1, "max": 4}, 1_000, (worker(1),), 3),
        ({"min": 0, "max": 4}, 0, (), 0),
        ({"min": 0, "max": 4}, 1, (), 1),  # one job, whatever the threshold
        ({"min": 0, "max": 4}, 1, (worker(1, "starting"),), 0),
        ({"min": 1, "max": 4}, 6, (worker(1, leases=2), worker(2, "starting"), worker(3, "starting")), 1),  # 6 + 2 jobs
        ({"min": 1, "max": 4}, 100, tuple(worker(n, "draining") for n in range(3)), 1),  # they have their places
        ({"min": 1, "max": 4}, 100, tuple(worker(n, "draining") for n in range(4)), 0),
        ({"min": 1, "max": 4}, 5, (worker(1, leases=2), worker(2, leases=2)), 2),  # what runs counts
    ],
)
def test_a_pool_starts_what_its_jobs_need_and_no_more(
    options: dict[str, Any], pending: int, workers: tuple[WorkerRow, ...], start: int
) -> None:
    assert judge(pool(**options), sight(pending, *workers)).start == start


@pytest.mark.parametrize(
    ("pending", "running", "desired"),
    [(0, 0, 0), (2, 0, 1), (2, 2, 1), (4, 8, 4), (4, 7, 4), (5, 2, 4), (0, 3, 2), (100, 0, 8)],
)
def test_outside_a_fleet_grows_from_the_threshold_on_and_keeps_who_is_busy(
    pending: int, running: int, desired: int
) -> None:
    policy = pool(min=0, max=8)
    assert desired_workers(policy, pending, running, busy_workers(policy, running)) == desired


def test_only_workers_that_were_idle_for_long_retire_the_longest_first() -> None:
    crew = (
        worker(1, idle_s=400),
        worker(2, idle_s=500),
        worker(3, leases=1),
        worker(4, idle_s=299),
        worker(5, "starting"),
    )
    assert judge(pool(min=1, max=8), sight(0, *crew)).retire == (2, 1)
    assert judge(pool(min=4, max=8), sight(0, *crew)).retire == (2,)
    assert judge(pool(min=5, max=8), sight(0, *crew)).retire == ()


def test_a_pool_without_a_minimum_keeps_one_worker_while_there_is_work() -> None:
    assert judge(pool(min=0), sight(1, worker(1, idle_s=400))).retire == ()
    assert judge(pool(min=0), sight(0, worker(1, idle_s=400))).retire == (1,)


@given(
    least=st.integers(0, 4),
    more=st.integers(1, 6),
    slots=st.integers(1, 5),
    pending=st.integers(0, 100),
    crew=st.lists(
        st.tuples(st.sampled_from(["starting", "active", "draining"]), st.integers(0, 5), st.integers(0, 900))
    ),
)
def test_no_decision_leaves_the_limits(
    least: int, more: int, slots: int, pending: int, crew: list[tuple[str, int, int]]
) -> None:
    policy = WorkerPool(min=least, max=least + more, slots=slots)
    workers = [worker(n, status, leases=leases, idle_s=idle) for n, (status, leases, idle) in enumerate(crew)]
    decision = judge(policy, sight(pending, *workers))
    kept = sum(row.status != "draining" for row in workers)
    assert not decision.start or len(workers) + decision.start <= policy.max
    assert not (decision.start and decision.retire)
    assert not decision.retire or kept - len(decision.retire) >= policy.min
    assert all(not workers[seq].leases and workers[seq].status == "active" for seq in decision.retire)
    assert policy.min <= decision.desired <= policy.max


def test_starts_that_fail_are_tried_one_at_a_time_and_later_each_time() -> None:
    failed = tuple(past(n, "lost", boot_by=n, pid=0) for n in (3, 2, 1))
    trouble = trouble_of(failed)
    assert (trouble.failures, trouble.retry_at, trouble.reason) == (3, NOW + 2 * SECOND, "why 3")
    policy = pool(min=4, max=8)
    assert judge(policy, sight(0, past=failed)).start == 0
    later = tuple(row._replace(now=NOW + 3 * SECOND) for row in failed)
    assert judge(policy, sight(0, past=later)).start == 1
    assert judge(policy, sight(0, worker(4, "starting"), past=later)).start == 0


def test_a_clock_that_goes_back_does_not_lengthen_the_pause_after_failures() -> None:
    failed = tuple(past(n, "lost", boot_by=n, pid=0) for n in (3, 2, 1))
    back = tuple(row._replace(now=NOW - 3_600 * SECOND) for row in failed)
    assert (trouble_of(back).failures, judge(pool(min=4, max=8), sight(0, past=back)).start) == (3, 1)
    alive = past(4, "active")._replace(now=NOW - 3_600 * SECOND)  # started at a time that is yet to come
    assert trouble_of([alive, *back]).failures == 0
    long = past(5, "lost", lived_s=-3_500)  # the clock went back while it lived
    assert trouble_of([long]).failures == 0


def test_the_longest_pause_between_tries_is_a_minute() -> None:
    failed = tuple(past(n, "lost", boot_by=n, pid=0) for n in range(40, 0, -1))
    assert trouble_of(failed).retry_at == NOW + 60 * SECOND


def test_workers_that_were_killed_together_are_replaced_together() -> None:
    killed = tuple(past(n, "lost", lived_s=3) for n in range(8, 0, -1))
    assert judge(pool(min=8, max=8), sight(0, past=killed)).start == 8


def test_a_worker_that_was_well_ends_the_trouble() -> None:
    assert trouble_of([past(3, "lost", lived_s=60), past(2, "lost", pid=0)]).failures == 0
    assert trouble_of([past(3, "stopped"), past(2, "lost", pid=0)]).failures == 0
    young = past(3, "active", ago_s=1)
    assert trouble_of([young, past(2, "lost", pid=0)]).failures == 1
    assert trouble_of([past(3, "active", ago_s=11), past(2, "lost", pid=0)]).failures == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min": 3, "max": 2}, "max must be at least min: 2 is less than 3"),
        ({"min": -1}, "min must be a whole number from 0"),
        ({"max": 0}, "max must be a whole number from 1"),
        ({"max": True}, "max must be a whole number"),
        ({"scale_up_threshold": 0}, "scale_up_threshold must be a whole number from 1"),
        ({"scale_down_idle": "soon"}, "is not a duration"),
        ({"scale_down_idle": 300}, "a duration must be text"),
        ({"slots": 0}, "slots must be a whole number from 1"),
        ({"boot": "0s"}, "boot must be longer than 0s"),
        ({"queues": "render"}, "queues must be a list of names"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises((BadSetting, UsageError), match=reason):
        WorkerPool(**options)


def test_a_policy_is_read_as_it_was_written_by_any_release() -> None:
    policy = WorkerPool(min=0, max=9, slots=3, queues=("a",), scale_down_idle="90s")
    assert policy_of(policy.as_json()) == policy
    assert policy_of('{"max": 9, "from_a_later_release": 1}') == WorkerPool(max=9)
