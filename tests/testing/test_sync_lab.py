"""A lab in tests that are not async does what the lab does."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, JobContext, Retry
from holdfast.errors import UsageError
from holdfast.testing import Labs, Script, Stuck, call, say, sync_lab
from tests.testing.conftest import Project, counts

NOBODY = "sqlite:///nobody/opens/this.db"


def test_jobs_run_when_the_test_says_so(labs: Labs) -> None:
    hf = Holdfast(NOBODY)

    @hf.job(name="remind", retry=Retry(attempts=2, base="10m"))
    async def remind(ctx: JobContext, who: str) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return f"reminded {who}"

    lab = labs.use_sync(hf)
    job = remind.enqueue_sync("Ann")
    assert lab.enqueued(remind) == [{"who": "Ann"}]
    lab.drain()
    before = lab.clock.now()
    with pytest.raises(Stuck, match="it is due in"):
        job.result_sync()
    lab.clock.advance("15m")
    assert (lab.clock.now() - before).total_seconds() == 900
    lab.drain()
    assert job.result_sync() == "reminded Ann"
    lab.close()
    assert hf.settings.url == NOBODY


def test_workers_are_killed_where_the_test_says(labs: Labs) -> None:
    hf = Holdfast(NOBODY)
    effects: list[str] = []

    def act(what: str) -> str:
        effects.append(what)
        return "ended"

    @hf.job
    async def work(ctx: JobContext) -> str:
        return await ctx.step("effect", act, "done")

    lab = labs.use_sync(hf)
    lab.crash(after="store_step")
    job = work.enqueue_sync()
    lab.drain()
    assert (job.result_sync(), effects, len(lab.crashes)) == ("ended", ["done"], 1)


def test_people_decide_about_calls(labs: Labs) -> None:
    hf = Holdfast(NOBODY)

    @hf.tool(effect="once", approve=lambda call: True)
    async def refund(order: str) -> str:
        """Pay the money back."""
        return f"refunded {order}"

    clerk = hf.agent("clerk", model="scripted/any", tools=[refund])
    lab = labs.use_sync(hf, Script(call("refund", order="A1"), say("done")))
    run = clerk.enqueue_sync("refund A1")
    lab.drain()
    assert [inquiry.kind for inquiry in lab.inquiries(run)] == ["approval"]
    lab.approve(run, by="Ann")
    lab.drain()
    assert (run.result_sync().text, lab.calls("refund")) == ("done", [{"order": "A1"}])
    assert (len(lab.asked), lab.rebought) == (2, [])


async def test_an_async_test_is_told_which_lab_it_needs(labs: Labs) -> None:
    with pytest.raises(UsageError, match=r"await holdfast\.use"):
        labs.use_sync(Holdfast(NOBODY))


def test_without_the_plugin() -> None:
    hf = Holdfast(NOBODY)

    @hf.job
    async def double(n: int) -> int:
        return 2 * n

    with sync_lab(hf, inline=True) as lab:
        assert double.enqueue_sync(21).result_sync() == 42
        assert lab.app is hf
    assert hf.settings.url == NOBODY


@pytest.mark.long
def test_an_async_test_that_nothing_runs_says_what_it_needs(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\n")
    project.write(
        "test_jobs.py",
        "async def test_jobs(holdfast):\n    assert False, 'never reached'\n\ndef test_plain(holdfast):\n    pass\n",
    )
    for modes in (("-p", "no:asyncio"), ()):
        said = project.test(*modes)
        assert counts(said) == {"failed": 1, "passed": 1}, said
        assert 'asyncio_mode = "auto"' in said.out
        assert "holdfast.use_sync(hf)" in said.out
