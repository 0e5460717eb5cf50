"""The large tables of `make bench`: jobs that SQL has written are what Holdfast's own calls would have left."""

from __future__ import annotations

import psycopg
import pytest

from bench import filling
from bench.contenders import CONTENDERS, HOLDFAST, Contender
from bench.filling import fill_finished, fill_pending

JOBS = 25
STATES = "select state, count(*) from holdfast.job_now group by state"
PLACES = """
select count(distinct seq), count(*) from (select seq from holdfast.ready union all select seq from holdfast.later
    union all select seq from holdfast.lease union all select seq from holdfast.ended) as places
"""
# Of what differs from job to job only whether it is there. The first job is Holdfast's own work.
KINDS = """
select count(*), kind, queue, route, slot, priority, max_attempts, max_rescues, cost, tenant, cast(metadata as text),
    token, attempts, rescues, epoch > 0, worker, lease_until > 0, finished_at > claimed_at, gate, lane, deadline_at
from holdfast.job_now group by 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21
"""
Rows = list[tuple[object, ...]]


@pytest.fixture
def ours() -> Contender:
    return next(each for each in CONTENDERS if (each.name, each.store) == (HOLDFAST, "postgres"))


def asked(url: str, question: str) -> Rows:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(question.encode()).fetchall()


@pytest.mark.long
def test_jobs_that_wait_are_like_the_one_that_was_enqueued(ours: Contender, postgres_url: str) -> None:
    fill_pending(ours, postgres_url, JOBS)
    assert asked(postgres_url, STATES) == [("pending", JOBS)]
    assert asked(postgres_url, PLACES) == [(JOBS, JOBS)]
    ((count, *_),) = asked(postgres_url, KINDS)
    assert count == JOBS
    assert asked(postgres_url, ours.unfinished) == [(True,)]


@pytest.mark.long
def test_jobs_that_have_ended_left_nothing_where_they_were(
    ours: Contender, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "_SLICE", 10)  # so the last slice is a part of one
    fill_finished(ours, postgres_url, JOBS)
    assert asked(postgres_url, STATES) == [("succeeded", JOBS)]
    assert asked(postgres_url, PLACES) == [(JOBS, JOBS)]
    ((count, *_),) = asked(postgres_url, KINDS)
    assert count == JOBS
    assert asked(postgres_url, ours.unfinished) == [(False,)]
