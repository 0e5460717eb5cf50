"""`holdfast jobs why` and `holdfast runs why`: one grammar for every state of a job and of a run."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Retry
from holdfast.agents.api.run import Run
from holdfast.agents.states import IN_BATCH, RunState
from holdfast.kernel.states import State
from holdfast.models import Script, call, reject, say
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.apps import eventually, in_state, settings_with, working
from tests.support.commands import holdfast

AT = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
JOBS = {
    State.SCHEDULED: [rf"it is due at {AT}, in \S+"],
    State.PENDING: [r"none of the 1 live workers serves queue 'nobody' with job:idle"],
    State.RUNNING: [rf"worker \S+ on \S+ has been running it since {AT}, with a lease until {AT}"],
    State.WAITING: ["it waits for a signal on channel 'go'"],
    State.SUCCEEDED: [rf"it succeeded at {AT}, after attempt 1 of 3"],
    State.FAILED: [
        rf"it failed at {AT}, after attempt 2 of 2: LookupError: no such page \(processing_error\)",
        r'it was raised here: File ".*test_why\.py", line \d+, in fail: raise LookupError\("no such page"\)',
        r"`holdfast jobs retry ID` enqueues it again, as a new job",
    ],
    State.CANCELLED: [rf"it was cancelled at {AT}: not needed"],
}
RUNS = {
    RunState.PENDING: [r"none of the 1 live workers serves queue 'nobody' with agent:nobody"],
    RunState.STREAMING: [rf"worker \S+ on \S+ has been running it since {AT}, with a lease until {AT}"],
    RunState.PENDING_TOOLS: [r"it waits for its tools: look \(running\)"],
    RunState.AWAITING_INPUT: [r"tool refund has been waiting for approval since \d\d:\d\d"],
    RunState.COMPLETED: [rf"it completed at {AT}, answered"],
    RunState.FAILED: [
        rf"it failed at {AT}, after attempt 1 of 3: the model could not be called: bad_request: no \(streaming_error\)",
        r"`holdfast runs retry ID` enqueues it again, as a new run",
    ],
    RunState.CANCELLED: [rf"it was cancelled at {AT}: not needed"],
}


@pytest.mark.long
async def test_each_state_has_the_same_words_and_shape_for_jobs_and_runs(place: Place) -> None:
    """Runs that wait for a batch are explained in tests/agents/test_batches.py."""
    assert {*JOBS} == {*State}
    assert {*RUNS} == {*RunState} - IN_BATCH
    hf = Holdfast(place.url, embedded=False)
    hf.settings = settings_with(url=place.url, script_pace="50ms")
    free = asyncio.Event()

    @hf.job(name="idle", queue="nobody")
    async def idle() -> None: ...

    @hf.job(name="done")
    async def done() -> None: ...

    @hf.job(name="hold")
    async def hold() -> None:
        await free.wait()

    @hf.job(name="wait")
    async def wait(ctx: JobContext) -> None:
        await ctx.wait("go")

    @hf.job(name="fail", retry=Retry(attempts=2, base="1ms"))
    async def fail() -> None:
        raise LookupError("no such page")

    @hf.tool
    async def look() -> str:
        """Look."""
        await free.wait()
        return "seen"

    @hf.tool(approve=True)
    def refund() -> str:
        """Refund."""
        return "refunded"

    scripts = {
        "slow": Script(say("word " * 10_000)),
        "looks": Script(call("look"), say("seen")),
        "asks": Script(call("refund"), say("done")),
        "fine": Script(say("fine")),
        "bad": Script(reject("no")),
    }
    for name, script in scripts.items():
        hf.script(name, script)
    agents = {name: hf.agent(name, model=f"scripted:{name}", tools=[look, refund]) for name in scripts}
    elsewhere = Holdfast(place.url, embedded=False)
    nobody = elsewhere.agent("nobody", model="scripted:", queue="nobody")

    async with hf, elsewhere, working(hf, Role(queues=("default",))):
        jobs = {
            State.SCHEDULED: await done.options(delay="1h").enqueue(),
            State.PENDING: await idle.enqueue(),
            State.RUNNING: await hold.enqueue(),
            State.WAITING: await wait.enqueue(),
            State.SUCCEEDED: await done.enqueue(),
            State.FAILED: await fail.enqueue(),
            State.CANCELLED: await done.options(delay="1h").enqueue(),
        }
        runs = {
            RunState.PENDING: await nobody.enqueue("hi"),
            RunState.STREAMING: await agents["slow"].enqueue("hi"),
            RunState.PENDING_TOOLS: await agents["looks"].enqueue("hi"),
            RunState.AWAITING_INPUT: await agents["asks"].enqueue("hi"),
            RunState.COMPLETED: await agents["fine"].enqueue("hi"),
            RunState.FAILED: await agents["bad"].enqueue("hi"),
            RunState.CANCELLED: await agents["fine"].enqueue("hi", delay="1h"),
        }
        await jobs[State.CANCELLED].cancel("not needed")
        await runs[RunState.CANCELLED].cancel("not needed")
        for state, job in jobs.items():
            await in_state(hf, job.id, state)
        for run_state, run in runs.items():
            await eventually(partial(run_is, run, run_state))
        await eventually(partial(tool_runs, runs[RunState.PENDING_TOOLS]))
        words: list[tuple[str, list[str]]] = [(job.id, JOBS[state]) for state, job in jobs.items()]
        words += [(run.id, RUNS[run_state]) for run_state, run in runs.items()]
        for id, wanted in words:
            for said in await asyncio.to_thread(explained, place.url, id):
                assert len(said) == len(wanted), said
                for sentence, pattern in zip(said, wanted, strict=True):
                    assert re.fullmatch(pattern.replace("ID", id), sentence), (sentence, pattern)
        again = holdfast("runs", "retry", runs[RunState.FAILED].id, "--url", place.url, "--json").json
        assert [each["retry_of"] for each in again] == [runs[RunState.FAILED].id]
        free.set()
        await runs[RunState.STREAMING].cancel()


def explained(url: str, id: str) -> list[list[str]]:
    """What both commands say of it, to programs and to people. Times differ: one counts down, a lease is renewed."""
    as_job, as_run = (holdfast(noun, "why", id, "--url", url, "--json").json for noun in ("jobs", "runs"))
    assert [set(each) for each in as_job] == [{"gate", "sentence", "until"}] * len(as_job)
    assert [each["gate"] for each in as_run] == [each["gate"] for each in as_job]
    sentences = [[each["sentence"] for each in found] for found in (as_job, as_run)]
    return [*sentences, holdfast("runs", "why", id, "--url", url).lines]


async def run_is(run: Run[Any], state: RunState) -> bool:
    return (await run.refresh()).state == state


async def tool_runs(run: Run[Any]) -> bool:
    return [call.state for call in await run.calls()] == ["running"]
