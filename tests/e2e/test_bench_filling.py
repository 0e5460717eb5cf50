"""The large tables of `make bench`: jobs that SQL has written are what Holdfast's own calls would have left."""

from __future__ import annotations

import psycopg
import pytest

from bench import filling
from bench.contenders import CONTENDERS, HOLDFAST, Contender
from bench.filling import fill_finished, fill_pending
from bench.run_filling import TENANTS, copy_message, copy_run
from holdfast import Holdfast
from holdfast.models.script import Script, say
from tests.conftest import Place
from tests.support.past_kernel import query

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


@pytest.mark.long
async def test_copies_of_a_run_are_runs_that_have_ended(place: Place) -> None:
    runs, messages = 250, 40
    async with Holdfast(place.url) as hf:
        await hf.migrate()
        hf.script("short", Script(say("Yes.")))
        guide = hf.agent("guide", model="scripted:short")
        run = await guide.run("Is it so?", session="long")
        copy_run(place.url, run.run_id, runs)
        said = hf.sessions["long"].messages
        copy_message(place.url, (await said(limit=1))[0].id, messages)
        listed = await hf.runs.list(limit=1_000)
        assert listed[0].id == run.run_id
        assert len(listed) == runs + 1
        assert len({each.tenant for each in listed}) == TENANTS + 1
        assert len(await hf.runs.list(state="failed", limit=10)) == runs // 100
        assert (await hf.sessions[listed[1].session].usage()).turns == 1
        assert len(await said(limit=1_000)) == messages + 2
        assert query(place, PLACES) == [(runs + 1, runs + 1)]
        assert (await guide.run("And now?")).text == "Yes."
