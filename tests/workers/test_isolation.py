"""Jobs in processes of their own: they do what others do, and they can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from holdfast import Cancel, Discard, Holdfast, RunFailed, Snooze
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.durations import microseconds
from holdfast.errors import UsageError
from holdfast.kernel.rows import Lease
from holdfast.outcomes import Done, Fail, Outcome, Park, TryAgain
from holdfast.workers.attempt import Attempts
from holdfast.workers.definitions import Definition
from holdfast.workers.isolation.pool import ProcessPool
from holdfast.workers.slots import Holding
from tests.support.apps import attempts, eventually, in_state, outcomes, settings_with
from tests.support.stores import Store, sqlite_store
from tests.workers import isolated_functions as functions
from tests.workers import isolated_jobs as jobs

ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """Whether a process can still do anything; one that only waits to be reaped cannot."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or state_and_parent(Path(f"/proc/{pid}"))[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def state_and_parent(entry: Path) -> list[str]:
    return (entry / "stat").read_text().rpartition(")")[2].split()[:2]


async def gone(*pids: int) -> None:
    await until(lambda: not any(map(alive, pids)))


async def written(file: Path) -> list[int]:
    """The pids in a file, once it is there."""
    await until(file.exists)
    return pids_in(file)


def pids_in(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()]


async def until(true: Callable[[], bool]) -> None:
    async def look() -> bool:
        return true()

    await eventually(look)


def children() -> list[str]:
    """The isolated children of this process, and those of its children that wait to be reaped."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, parent = state_and_parent(entry)
            if int(parent) == os.getpid() and (state == "Z" or "isolation.child" in (entry / "cmdline").read_text()):
                found.append(entry.name)
    return found


class Stage:
    """A pool under real attempts, without the worker around them."""

    def __init__(self, store: Store, pool: ProcessPool) -> None:
        self.store = store
        self.pool = pool
        self._attempts = Attempts(store.database, store.ports, store.settings, None, pool)

    async def run(self, job: JobFunction[..., Any], /, *args: Any, **kwargs: Any) -> Outcome | None:
        """The outcome of one attempt of a job that was just enqueued."""
        payload = json.dumps(job.definition.signature.encode(args, kwargs))
        return await self.attempt(job.definition, await self.lease(job.definition, payload))

    async def lease(self, definition: Definition, payload: str) -> Lease:
        kind = definition.kind
        await self.store.enqueue(kind, payload=payload, tenant="acme", metadata='{"colour":"red"}')
        (lease,) = await self.store.claim(await self.store.worker(), kind=kind)
        return lease

    async def attempt(self, definition: Definition, lease: Lease) -> Outcome | None:
        holding = Holding(lease, self.store.clock.monotonic(), float("inf"))
        return await self._attempts.run(definition, holding, now_us=self.store.clock.us)

    async def result(self, job: JobFunction[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        outcome = await self.run(job, *args, **kwargs)
        assert isinstance(outcome, Done), outcome
        return outcome.result


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with sqlite_store(tmp_path, result_cap=200_000) as store:
        pool = ProcessPool(2)
        yield Stage(store, pool)
        await pool.close()


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Holdfast]:
    """The app of the handlers, with a worker in this process."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setattr(jobs.hf, "settings", settings_with(url=url, concurrency=3, drain_grace="5s"))
    async with jobs.hf:
        yield jobs.hf


class TestCalls:
    async def test_arguments_and_result_pass_as_their_types_say(self, stage: Stage) -> None:
        assert await stage.result(jobs.double, 21) == 42
        point = functions.Point(x=1, day=date(2024, 2, 28))
        assert await stage.result(jobs.shift, point) == {"x": 2, "day": "2024-02-29"}

    async def test_a_function_decorated_elsewhere_is_found_by_its_name(self, stage: Stage) -> None:
        elsewhere = Holdfast("sqlite://:memory:").job(isolate="process", name="p")(functions.plain)
        assert await stage.result(elsewhere, 1) == 2

    async def test_a_child_is_used_again(self, stage: Stage) -> None:
        first = await stage.result(jobs.pid)
        assert first != os.getpid()
        assert await stage.result(jobs.pid) == first

    @pytest.mark.long
    async def test_jobs_at_once_have_a_process_each(self, stage: Stage, tmp_path: Path) -> None:
        names = ("a", "b")
        meetings = (stage.result(jobs.meet, str(tmp_path), one, other) for one, other in (names, names[::-1]))
        assert len(set(await asyncio.gather(*meetings))) == 2

    @pytest.mark.long
    async def test_no_more_processes_than_slots(self, stage: Stage) -> None:
        assert len(set(await asyncio.gather(*(stage.result(jobs.pid) for _ in range(8))))) <= 2

    @pytest.mark.long
    async def test_an_idle_child_leaves(self, stage: Stage) -> None:
        impatient = Stage(stage.store, ProcessPool(2, patience=0))
        await gone(await impatient.result(jobs.pid))
        assert await impatient.result(jobs.double, 1) == 2
        await until(lambda: not children())

    @pytest.mark.long
    async def test_an_idle_child_that_was_killed_is_replaced(self, stage: Stage) -> None:
        first = await stage.result(jobs.pid)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not stage.pool._idle)
        assert await stage.result(jobs.pid) != first

    async def test_a_transaction_of_its_own_is_refused(self, stage: Stage) -> None:
        assert "call ctx.step without tx" in await stage.result(jobs.lend)

    @pytest.mark.long
    async def test_what_is_printed_does_not_matter(self, stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
        assert await stage.result(jobs.noisy) == "returned"
        assert "printed" in capfd.readouterr().out


class TestEnds:
    @pytest.mark.sample(1)
    @pytest.mark.parametrize(
        ("how", "expected"),
        [
            ("done", Done([1])),
            ("fail", Fail("never", "hopeless")),
            ("retry", (TryAgain, 90_000_000, "not yet", "busy")),
            ("park", (Park, "news", 5_000_000)),
            ("snooze", (Snooze, 300_000_000, "tired")),
            ("returned snooze", (Snooze, 300_000_000, "tired")),
            ("cancel", (Cancel, "enough")),
            ("discard", (Discard, "useless")),
        ],
    )
    async def test_every_outcome_arrives_as_it_was_meant(self, stage: Stage, how: str, expected: object) -> None:
        assert shown(await stage.run(jobs.ends, how)) == expected

    async def test_an_exception_is_a_retry_with_the_childs_trace(self, stage: Stage) -> None:
        outcome = await stage.run(jobs.fails)
        assert isinstance(outcome, TryAgain)
        assert (outcome.error, outcome.type) == ("ValueError: bad", "processing_error")
        assert "isolated_functions.py" in outcome.trace
        assert "raise ValueError" in outcome.trace

    @pytest.mark.long
    async def test_a_message_that_no_database_takes_still_arrives(self, stage: Stage) -> None:
        outcome = await stage.run(jobs.fails, "odd")
        assert isinstance(outcome, TryAgain)
        assert outcome.error.startswith("ValueError: \N{REPLACEMENT CHARACTER} ")
        assert outcome.error.endswith("y…")

    @pytest.mark.long
    async def test_leaving_the_interpreter_is_a_failed_attempt(self, stage: Stage) -> None:
        before = await stage.result(jobs.pid)
        for job, args, error in (
            (jobs.ends, ("exit",), "SystemExit: 3"),
            (jobs.exits_sync, (), "SystemExit: done with it"),
            (jobs.ends, ("cancelled",), "CancelledError: "),
        ):
            outcome = await stage.run(job, *args)
            assert isinstance(outcome, TryAgain)
            assert outcome.error == error
        assert await stage.result(jobs.pid) == before

    @pytest.mark.long
    async def test_a_result_over_the_cap_is_refused(self, stage: Stage) -> None:
        outcome = await stage.run(jobs.huge, 50_000_000)
        assert isinstance(outcome, Fail)
        assert outcome.type == "result_error"
        assert "is 50,000,002 bytes of JSON, over the cap of 200,000" in outcome.error
        assert len(await stage.result(jobs.huge, 190_000)) == 190_000

    async def test_the_cap_is_the_one_of_the_job(self, stage: Stage) -> None:
        """Also in a child that was started for a job with a smaller one."""
        wide = replace(jobs.huge.definition, result_cap=lambda settings: 10 * settings.result_cap)
        narrow = replace(jobs.huge.definition, result_cap=lambda settings: settings.result_cap // 10)
        small, large = 20_001, 1_900_000
        for definition, size, fits in ((narrow, small, False), (wide, large, True), (narrow, small, False)):
            outcome = await stage.attempt(definition, await stage.lease(definition, json.dumps({"size": size})))
            assert isinstance(outcome, Done) is fits, outcome
            if isinstance(outcome, Fail):
                assert "is 20,003 bytes of JSON, over the cap of 20,000" in outcome.error

    @pytest.mark.long
    async def test_what_cannot_be_told_is_a_failure_that_says_so(self, stage: Stage) -> None:
        for job, args, message in (
            (jobs.unstorable, (), "cannot be stored as JSON"),
            (jobs.ends, ("endless",), "on its way from the job's process to the worker, over the limit"),
        ):
            outcome = await stage.run(job, *args)
            assert isinstance(outcome, Fail)
            assert outcome.type == "result_error"
            assert message in outcome.error

    @pytest.mark.long
    async def test_stored_arguments_that_do_not_fit_fail_at_once(self, stage: Stage) -> None:
        definition = jobs.double.definition
        outcome = await stage.attempt(definition, await stage.lease(definition, '{"n":"many"}'))
        assert isinstance(outcome, Fail)
        assert (outcome.type, "n: Input should be a valid integer" in outcome.error) == ("invalid_input", True)


class TestDeaths:
    @pytest.mark.sample(1)
    @pytest.mark.parametrize(("how", "cause"), [("exit", "exit code 3"), ("kill", "signal 9")])
    async def test_a_process_that_dies_fails_its_attempt(self, stage: Stage, how: str, cause: str) -> None:
        outcome = await stage.run(jobs.dies, how)
        assert outcome == TryAgain(error=f"its process died ({cause})", type="process_died")
        assert await stage.result(jobs.double, 1) == 2

    @pytest.mark.long
    async def test_what_it_leaves_behind_is_killed_and_delays_nobody(self, stage: Stage, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        assert await stage.run(jobs.dies_leaving, str(file)) == TryAgain(
            error="its process died (exit code 3)", type="process_died"
        )
        await gone(*await written(file))

    @pytest.mark.sample(1)
    @pytest.mark.parametrize(
        ("junk", "times", "complaint"),
        [
            ("no JSON\n", 1, "but not a frame"),
            ('{"hello": 1}\n', 1, "'hello'"),
            ('{"ask": ["drop_tables"]}\n', 1, "'drop_tables'"),
            ("endless", 3_000_000, "but not a frame"),
        ],
    )
    async def test_a_process_that_misuses_the_socket_is_killed(
        self, stage: Stage, junk: str, times: int, complaint: str
    ) -> None:
        before = await stage.result(jobs.pid)
        outcome = await stage.run(jobs.babbles, junk, times)
        assert isinstance(outcome, TryAgain)
        assert (outcome.type, complaint in outcome.error) == ("process_died", True)
        await gone(before)
        assert await stage.result(jobs.double, 1) == 2

    async def test_cancelling_an_attempt_kills_the_whole_group(self, stage: Stage, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        attempt = asyncio.create_task(stage.run(jobs.never_returns, str(file)))
        pids = await written(file)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert not alive(pids[0])
        await gone(*pids)

    @pytest.mark.long
    async def test_an_interpreter_that_never_gives_a_turn_is_killed(self, stage: Stage, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        attempt = asyncio.create_task(stage.run(jobs.holds_the_interpreter, str(file)))
        pids = await written(file)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await gone(*pids)

    @pytest.mark.long
    async def test_cancelling_while_the_process_starts_leaves_none(self, stage: Stage) -> None:
        for turns in (1, 5, 10, 20, 40):
            attempt = asyncio.create_task(stage.run(jobs.pid))
            for _ in range(turns):
                await asyncio.sleep(0)
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        await stage.pool.close()
        await until(lambda: not children())

    @pytest.mark.long
    async def test_closing_the_pool_kills_idle_and_busy_alike(self, stage: Stage, tmp_path: Path) -> None:
        idle = await stage.result(jobs.pid)
        file = tmp_path / "pids"
        first = asyncio.create_task(stage.run(jobs.never_returns, str(file)))
        busy = await written(file)
        assert busy[0] == idle
        second = await stage.result(jobs.pid)
        await stage.pool.close()
        for pid in (idle, second):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)  # reaped, too
        assert await first == TryAgain(error="its process died (signal 9)", type="process_died")
        await gone(*busy)


class TestContext:
    async def test_it_has_what_other_contexts_have(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "holdfast.job")
        seen = await stage.result(jobs.shows)
        row = await stage.store.find(seen["id"])
        assert seen == {
            "id": row.id,
            "kind": "tests.workers.isolated_jobs.shows",
            "queue": "default",
            "tenant": "acme",
            "attempt": 1,
            "token": "1.1",
            "metadata": {"colour": "red"},
            "idempotency_key": row.id,
            "cancelled": False,
        }
        assert row.progress == '{"half":true}'
        (record,) = [record for record in caplog.records if record.name.startswith("holdfast.job")]
        assert (record.getMessage(), record.levelno, vars(record)["job"]) == ("seen 1", logging.INFO, row.id)

    @pytest.mark.long
    async def test_many_questions_at_once_get_their_own_answers(self, stage: Stage) -> None:
        assert await stage.result(jobs.steps_at_once) == list(range(20))

    @pytest.mark.long
    async def test_a_step_over_the_cap_is_refused(self, stage: Stage) -> None:
        outcome = await stage.run(jobs.big_step, 300_000)
        assert isinstance(outcome, Fail)
        assert "the result of step 'big' is 300,002 bytes of JSON" in outcome.error

    @pytest.mark.long
    async def test_the_context_of_an_earlier_job_is_refused(self, stage: Stage) -> None:
        """Or its writes would go out under the token of the job that has the process now."""
        assert await stage.result(jobs.keeps) == "accepted"
        assert await stage.result(jobs.keeps) == "refused"

    async def test_the_database_is_out_of_reach(self, stage: Stage) -> None:
        outcome = await stage.run(jobs.enqueues)
        assert isinstance(outcome, TryAgain)
        assert "cannot reach the database from its process. Use its JobContext" in outcome.error

    @pytest.mark.long
    async def test_a_lost_lease_ends_the_attempt_without_an_outcome(self, stage: Stage) -> None:
        lease = await stage.lease(jobs.shows.definition, "{}")
        assert await stage.attempt(jobs.shows.definition, lease._replace(token=lease.token - 1)) is None


class TestUnderAWorker:
    async def test_a_job_runs_and_its_result_comes_back_typed(self, app: Holdfast) -> None:
        point = functions.Point(x=1, day=date(2024, 12, 31))
        job = await jobs.shift.enqueue(point, days=1)
        assert await job.result() == functions.Point(x=2, day=date(2025, 1, 1))

    async def test_a_step_is_done_once_across_a_retry(self, app: Holdfast, tmp_path: Path) -> None:
        job = await jobs.once.enqueue(str(tmp_path))
        assert await job.result() == [True, 2]
        assert (tmp_path / "effects").read_text() == "x"
        assert await outcomes(app, job.id) == ["retried", "succeeded"]

    @pytest.mark.long
    async def test_a_parent_joins_its_children(self, app: Holdfast) -> None:
        job = await jobs.tree.enqueue(3)
        assert await job.result() == [0, 1, 4, 6]
        assert {outcome for outcome in await outcomes(app, job.id) if outcome != "succeeded"} <= {"parked"}

    @pytest.mark.long
    async def test_a_job_waits_for_signals_without_its_process(self, app: Holdfast) -> None:
        job = await jobs.listens.enqueue("news")
        await in_state(app, job.id, "waiting")
        await app.signal("news", {"n": 1})
        assert await job.result() == [{"n": 1}, None]

    @pytest.mark.long
    @pytest.mark.parametrize("spinning", [jobs.spins, jobs.spins_on_the_loop])
    async def test_a_timeout_kills_a_busy_loop(
        self, app: Holdfast, tmp_path: Path, spinning: JobFunction[[str], None]
    ) -> None:
        assert await jobs.double.run(1) == 2  # its process is warm now, so the time goes to the loop
        file = tmp_path / "pids"
        job = await spinning.enqueue(str(file))
        with pytest.raises(RunFailed, match="timed out after 4s"):
            await job.result()
        await gone(*await written(file))
        assert await jobs.double.run(4) == 8

    async def test_a_cancel_kills(self, app: Holdfast, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        job = await jobs.never_returns.enqueue(str(file))
        pids = await written(file)
        await job.cancel()
        with pytest.raises(RunFailed, match="cancelled"):
            await job.result()
        await gone(*pids)
        assert await jobs.double.run(4) == 8

    @pytest.mark.long
    async def test_a_process_that_dies_costs_an_attempt_and_not_the_worker(self, app: Holdfast) -> None:
        job = await jobs.dies.enqueue("kill")
        with pytest.raises(RunFailed, match=r"its process died \(signal 9\)"):
            await job.result()
        (attempt,) = await attempts(app, job.id)
        assert attempt.error["type"] == "process_died"
        assert await jobs.double.run(4) == 8

    @pytest.mark.long
    async def test_leaving_hands_the_job_back_and_kills_its_process(self, app: Holdfast, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        job = await jobs.never_returns.enqueue(str(file))
        pids = await written(file)
        state = core_of(app).here()
        worker, state.worker = state.worker, None
        assert worker is not None
        await worker.stop(grace=0)
        await gone(*pids)
        assert (await job.refresh()).state == "pending"


class TestNames:
    def test_a_function_that_has_no_name_in_its_module_is_refused(self) -> None:
        hf = Holdfast("sqlite://:memory:")

        def closure() -> None: ...

        class Tasks:
            def method(self) -> None: ...

        for function in (closure, lambda: None, Tasks().method):
            with pytest.raises(UsageError, match="Move it to module level"):
                hf.job(isolate="process", name="work")(function)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize(
        ("name", "complaint"),
        [("no_such_job", "has no 'no_such_job'"), ("ROOT", "'ROOT' in tests.workers.test_isolation no longer names")],
    )
    async def test_a_name_that_stands_for_nothing_or_something_else_is_refused(
        self, stage: Stage, name: str, complaint: str
    ) -> None:
        async def impostor(n: int) -> int:
            return n

        impostor.__qualname__ = name
        job = Holdfast("sqlite://:memory:").job(isolate="process", name="work")(impostor)
        outcome = await stage.run(job, 1)
        assert isinstance(outcome, Fail)
        assert complaint in outcome.error


GUARDED = """
import os, sys
from holdfast import Holdfast, JobContext

hf = Holdfast({url!r})

@hf.job(isolate="process")
async def parent(ctx: JobContext, n: int) -> list[int | str]:
    await ctx.start(child, n)
    (ended,) = await ctx.join()
    return [ended.result, ended.kind, __name__, len(sys.argv)]

@hf.job
async def child(n: int) -> int:
    return n + 1

def main() -> None:
    print(parent.run_sync(1))
    hf.sync.close()
"""

PROGRAMS = {"guarded": 'if __name__ == "__main__":\n    main()\n', "unguarded": "main()\n"}


def program(folder: Path, end: str) -> Path:
    file = folder / "program.py"
    file.write_text(GUARDED.format(url=f"sqlite:///{folder / 'program.db'}") + PROGRAMS[end])
    return file


async def python(*arguments: str | Path, cwd: Path) -> tuple[str, str]:
    """What a program prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return out.decode(), err.decode()


class TestPrograms:
    @pytest.mark.long
    async def test_a_script_run_directly_is_found_by_its_file(self, tmp_path: Path) -> None:
        out, err = await python(program(tmp_path, "guarded"), "an argument", cwd=tmp_path.parent)
        assert out == "[2, 'program.child', '__holdfast_main__', 2]\n", err

    @pytest.mark.long
    async def test_a_module_run_with_m_is_found_by_its_name(self, tmp_path: Path) -> None:
        program(tmp_path, "guarded")
        out, err = await python("-m", "program", cwd=tmp_path)
        assert out == "[2, 'program.child', 'program', 1]\n", err

    @pytest.mark.long
    async def test_a_program_without_a_guard_is_told_so(self, tmp_path: Path) -> None:
        """And does not start itself again and again."""
        out, err = await python(program(tmp_path, "unguarded"), cwd=tmp_path)
        assert out == ""
        assert 'put what it does when it is run under `if __name__ == "__main__":`' in err

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("job", ["never_returns", "holds_the_interpreter"])
    async def test_a_worker_killed_with_9_takes_its_children_along(self, tmp_path: Path, job: str) -> None:
        file = tmp_path / "pids"
        script = tmp_path / "worker.py"
        script.write_text(
            "from tests.workers import isolated_jobs as jobs\n"
            f"jobs.hf.settings = jobs.hf.settings.override({{'url': 'sqlite:///{tmp_path / 'store.db'}'}})\n"
            f"jobs.{job}.run_sync({str(file)!r})\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        worker = await asyncio.create_subprocess_exec(sys.executable, script, env=environment, cwd=tmp_path)
        try:
            pids = await written(file)
        finally:
            worker.kill()
            await worker.wait()
        await gone(*pids)


def shown(outcome: Outcome | None) -> object:
    """An outcome as something that can be compared, since exceptions cannot."""
    match outcome:
        case TryAgain(after, error, type):
            return (TryAgain, microseconds(after or "0s"), error, type)
        case Park(channel, timeout):
            return (Park, channel, microseconds(timeout or "0s"))
        case Snooze():
            return (Snooze, outcome.delay_us, outcome.reason)
        case Cancel():
            return (Cancel, outcome.reason)
        case Discard():
            return (Discard, outcome.reason)
    return outcome
