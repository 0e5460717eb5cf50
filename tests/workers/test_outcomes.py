"""How an attempt ends: by what its handler returns, and by what it raises."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Cancel, Discard, Holdfast, Retry, RunFailed, Snooze
from holdfast.kernel import codec
from holdfast.outcomes import Done, Fail, Park, TryAgain
from tests.support.apps import MakeApp, attempts, in_state, outcomes

QUICK = Retry(attempts=3, backoff="constant", base="10ms", jitter=0)


def error_of(error: dict[str, Any] | None) -> dict[str, Any]:
    assert error is not None
    return error


async def test_a_plain_value_is_the_result(hf: Holdfast) -> None:
    @hf.job
    async def greet(name: str) -> dict[str, str]:
        return {"hello": name}

    async with hf:
        job = await greet.enqueue("Oslo")
        assert await job.result() == {"hello": "Oslo"}
        row = await job.refresh()
        assert (row.state, row.attempts, row.error) == ("succeeded", 1, None)
        assert await outcomes(hf, job.id) == ["succeeded"]


async def test_nothing_returned_is_a_result_too(hf: Holdfast) -> None:
    @hf.job
    def quiet() -> None:
        """Says nothing."""

    async with hf:
        job = await quiet.enqueue()
        assert await job.result() is None  # type: ignore[func-returns-value]
        assert job.state == "succeeded"


async def test_done_carries_the_result(hf: Holdfast) -> None:
    @hf.job
    async def work() -> Done:
        return Done([1, 2])

    async with hf:
        job = await work.enqueue()
        result: object = await job.result()
        assert result == [1, 2]


async def test_an_outcome_may_stand_in_the_annotation_beside_the_result(hf: Holdfast) -> None:
    @hf.job
    async def work(well: bool) -> int | Discard | Fail:
        return 5 if well else Discard("not well")

    async with hf:
        good, bad = await work.enqueue(True), await work.enqueue(False)
        assert await good.result() == 5
        with pytest.raises(RunFailed, match="not well"):
            await bad.result()


async def test_retry_comes_back_after_the_time_it_names(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job
    async def work() -> str | TryAgain:
        seen.append(1)
        return TryAgain(after="10ms", error="not yet", type="cold") if len(seen) < 3 else "warm"

    async with hf:
        job = await work.enqueue()
        assert await job.result() == "warm"
        assert await outcomes(hf, job.id) == ["retried", "retried", "succeeded"]
        first = (await attempts(hf, job.id))[0]
        assert error_of(first.error) == {"type": "cold", "message": "not yet"}


async def test_fail_is_final_whatever_attempts_are_left(hf: Holdfast) -> None:
    @hf.job(retry=QUICK)
    async def work() -> Fail:
        return Fail("no such city", "invalid_city")

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="ended as failed: no such city"):
            await job.result()
        row = await job.refresh()
        assert (row.state, row.attempts) == ("failed", 1)
        assert error_of(row.error) == {"type": "invalid_city", "message": "no such city"}


async def test_park_waits_without_a_lease_until_the_signal(hf: Holdfast) -> None:
    woken: list[bool] = []

    @hf.job
    async def work() -> str | Park:
        woken.append(True)
        return Park("door") if len(woken) == 1 else "opened"

    async with hf:
        job = await work.enqueue()
        row = await in_state(hf, job.id, "waiting")
        assert (row.channel, row.worker, row.lease_until, row.attempts) == ("door", None, None, 0)
        await hf.signal("door")
        assert await job.result() == "opened"
        assert await outcomes(hf, job.id) == ["parked", "succeeded"]


def returns(outcome: Cancel | Discard | Snooze) -> Any:
    return outcome


def raises(outcome: Cancel | Discard | Snooze) -> Any:
    raise outcome


BOTH_WAYS = pytest.mark.parametrize("give", [returns, raises])
Give = Callable[[Cancel | Discard | Snooze], Any]


@BOTH_WAYS
async def test_cancel_ends_the_job_as_cancelled(hf: Holdfast, give: Give) -> None:
    @hf.job(retry=QUICK)
    async def work() -> None:
        return give(Cancel("the customer left"))  # type: ignore[no-any-return]

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="ended as cancelled: the customer left"):
            await job.result()
        row = await job.refresh()
        assert (row.state, row.attempts) == ("cancelled", 1)
        assert error_of(row.error) == {"type": "cancelled", "message": "the customer left"}


@BOTH_WAYS
async def test_discard_fails_without_using_the_attempts_left(hf: Holdfast, give: Give) -> None:
    @hf.job(retry=QUICK)
    async def work() -> None:
        return give(Discard("no use"))  # type: ignore[no-any-return]

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="ended as failed: no use"):
            await job.result()
        row = await job.refresh()
        assert (row.state, row.attempts) == ("failed", 1)
        assert error_of(row.error) == {"type": "discarded", "message": "no use"}


@BOTH_WAYS
async def test_snooze_comes_back_and_costs_no_attempt(hf: Holdfast, give: Give) -> None:
    seen: list[int] = []

    @hf.job(retry=Retry(attempts=1))
    async def work() -> str:
        seen.append(1)
        return give(Snooze("10ms")) if len(seen) < 3 else "rested"

    async with hf:
        job = await work.enqueue()
        assert await job.result() == "rested"
        assert (await job.refresh()).attempts == 1
        assert await outcomes(hf, job.id) == ["snoozed", "snoozed", "succeeded"]


async def test_a_snoozed_job_is_scheduled_without_a_lease(hf: Holdfast) -> None:
    @hf.job
    async def work() -> None:
        raise Snooze("1h", "the disk is full")

    async with hf:
        job = await work.enqueue()
        row = await in_state(hf, job.id, "scheduled")
        assert (row.attempts, row.worker, row.lease_until) == (0, None, None)
        (attempt,) = await attempts(hf, job.id)
        assert row.due_at == attempt.ended_at + timedelta(hours=1)


async def test_an_exception_is_retried_by_the_policy_and_then_fails(hf: Holdfast) -> None:
    @hf.job(retry=QUICK)
    async def work(number: int) -> None:
        raise LookupError(f"no page {number}")

    async with hf:
        job = await work.enqueue(7)
        with pytest.raises(RunFailed, match="LookupError: no page 7"):
            await job.result()
        row = await job.refresh()
        assert (row.state, row.attempts, row.max_attempts) == ("failed", 3, 3)
        error = error_of(row.error)
        assert (error["type"], error["message"]) == ("processing_error", "LookupError: no page 7")
        assert 'raise LookupError(f"no page {number}")' in error["trace"]
        assert await outcomes(hf, job.id) == ["retried", "retried", "failed"]


async def test_the_policy_says_how_long_a_retry_waits(hf: Holdfast) -> None:
    @hf.job(retry=Retry(backoff="constant", base="1h", jitter=0))
    async def work() -> None:
        raise RuntimeError

    async with hf:
        job = await work.enqueue()
        row = await in_state(hf, job.id, "scheduled")
        (attempt,) = await attempts(hf, job.id)
        assert row.due_at == attempt.ended_at + timedelta(hours=1)
        assert error_of(row.error)["message"] == "RuntimeError: "


async def test_a_sync_handler_fails_the_same_way(hf: Holdfast) -> None:
    @hf.job(retry=Retry(attempts=1))
    def work() -> None:
        raise LookupError("no page")

    @hf.job(retry=Retry(attempts=1))
    def stop() -> None:
        raise StopIteration("which futures cannot carry")

    async with hf:
        job, stopped = await work.enqueue(), await stop.enqueue()
        with pytest.raises(RunFailed, match="LookupError: no page"):
            await job.result()
        assert 'raise LookupError("no page")' in error_of((await job.refresh()).error)["trace"]
        with pytest.raises(RunFailed, match="StopIteration"):
            await stopped.result()


async def test_an_error_may_say_anything(hf: Holdfast) -> None:
    """NUL, lone surrogates and endless text: an error is always storable."""

    @hf.job(retry=Retry(attempts=1))
    async def work() -> None:
        raise ValueError("a\x00b \ud800 " + "x" * 100_000)

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed):
            await job.result()
        message = error_of((await job.refresh()).error)["message"]
        assert message.startswith("ValueError: a")
        assert "\x00" not in message
        assert len(message) < 20_000


def discards() -> None:
    try:
        int("x")
    except ValueError as problem:
        raise Discard("no number") from problem


def enqueues_no_json() -> None:
    codec.encode(object(), what="the arguments", cap=100)


def local(function: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def called() -> None:
        function()

    called.__qualname__ = function.__name__
    return called


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "done"])
async def test_a_result_that_is_not_json_fails_the_job(hf: Holdfast, wrapped: bool) -> None:
    seen: list[int] = []

    @hf.job(retry=QUICK)
    async def work() -> Any:
        seen.append(1)
        return Done(object()) if wrapped else object()

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="cannot be stored as JSON"):
            await job.result()
        assert error_of((await job.refresh()).error)["type"] == "result_error"
        assert seen == [1], "running it again would give the same"


class Line(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("declared", "value", "said"),
    [
        (str, 3, "returned int 3, declared str."),
        (int, None, "returned None, declared int."),
        (None, "x", "returned str 'x', declared None."),
        (str | None, [1], "returned list [1], declared str | None."),
        (list[int], [1, "b"], "returned list [1, 'b'], declared list[int]: 1: Input should be a valid integer"),
        (Line, Line.model_construct(name=5), "returned Line, declared Line: name: Input should be a valid string."),
        (int, "a" * 1_000, "returned str 'aaaaaaaaaaaa...aaaaaaaaaaaaa', declared int."),
        (int, {"password": "open sesame"}, "returned dict {'password': '[redacted]'}, declared int."),
        (str, 10**5_000, "returned int, declared str."),
    ],
    ids=["plain", "none", "no result", "union", "item", "field", "long", "secret", "huge"],
)
async def test_a_result_of_another_type_fails_the_job(hf: Holdfast, declared: Any, value: object, said: str) -> None:
    async def work() -> Any:
        return value

    work.__annotations__["return"] = declared
    job = hf.job(name="work")(work)
    async with hf:
        with pytest.raises(RunFailed) as failed:
            await job.run()
    assert f"job 'work' {said}" in str(failed.value)
    assert failed.value.error_type == "result_error"


@pytest.mark.long
@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
async def test_a_failure_that_is_not_retried_says_where_it_was_raised(hf: Holdfast, isolated: bool) -> None:
    """Of a job that was discarded because of something, and of one that enqueued what cannot be stored."""
    discarding, enqueuing = (discards, enqueues_no_json) if isolated else (local(discards), local(enqueues_no_json))
    options: dict[str, Any] = {"retry": QUICK, **({"isolate": "process"} if isolated else {})}
    discarded, refused = hf.job(**options)(discarding), hf.job(**options)(enqueuing)
    async with hf:
        for work, said in ((discarded, 'int("x")'), (refused, "codec.encode(object()")):
            job = await work.enqueue()
            with pytest.raises(RunFailed) as caught:
                await job.result()
            assert said in error_of((await job.refresh()).error)["trace"]
            assert said in "".join(caught.value.__notes__)


async def test_a_result_other_than_its_annotation_fails_the_job(hf: Holdfast) -> None:
    @hf.job
    async def work() -> int:
        return "five"  # type: ignore[return-value]

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed):
            await job.result()
        assert error_of((await job.refresh()).error)["type"] == "result_error"


@pytest.mark.parametrize("result", ["a\x00b", "a\ud800b", math.nan], ids=["nul", "surrogate", "nan"])
async def test_a_result_no_database_can_hold_fails_the_job(hf: Holdfast, result: object) -> None:
    @hf.job
    async def work() -> Any:
        return result

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed):
            await job.result()
        assert error_of((await job.refresh()).error)["type"] == "result_error"


async def test_a_result_over_the_cap_fails_the_job(make_app: MakeApp) -> None:
    hf = make_app(result_cap=100)

    @hf.job
    async def work(size: int) -> str:
        return "x" * size

    async with hf:
        good, bad = await work.enqueue(98), await work.enqueue(99)
        assert len(await good.result()) == 98
        with pytest.raises(RunFailed, match="101 bytes of JSON, over the cap of 100"):
            await bad.result()
        assert error_of((await bad.refresh()).error)["type"] == "result_error"


async def test_stored_arguments_that_do_not_fit_fail_the_job(make_app: MakeApp) -> None:
    """As when the function changed after the job was accepted."""
    before, after = make_app(embedded=False), make_app()
    seen: list[int] = []

    @before.job(name="work")
    async def old(city: str) -> None: ...

    @after.job(name="work", retry=QUICK)
    async def new(city: int) -> None:
        seen.append(city)

    job = await old.enqueue("Oslo")
    async with after:
        with pytest.raises(RunFailed, match="stored arguments of job 'work' do not fit: city"):
            await job.result()
        assert error_of((await job.refresh()).error)["type"] == "invalid_input"
        assert seen == []


async def test_a_handler_that_cancels_itself_has_failed(hf: Holdfast) -> None:
    """Nobody asked the worker to stop it, so this is an error like any other, not a free second try."""

    @hf.job(retry=QUICK)
    async def work() -> None:
        raise asyncio.CancelledError("an inner task was cancelled")

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="CancelledError"):
            await job.result()
        assert await outcomes(hf, job.id) == ["retried", "retried", "failed"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_exits_takes_nobody_along(hf: Holdfast, kind: str) -> None:
    @hf.job(retry=Retry(attempts=1))
    async def leave() -> None:
        sys.exit(3)

    @hf.job(retry=Retry(attempts=1))
    def leave_sync() -> None:
        sys.exit(3)

    @hf.job
    async def stay() -> str:
        return "here"

    async with hf:
        job = await (leave if kind == "async" else leave_sync).enqueue()
        with pytest.raises(RunFailed, match="SystemExit: 3"):
            await job.result()
        assert await (await stay.enqueue()).result() == "here"


async def test_a_group_of_errors_is_an_error(hf: Holdfast) -> None:
    @hf.job(retry=Retry(attempts=1))
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fall())

    async def fall() -> None:
        raise OSError("fell")

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="ExceptionGroup"):
            await job.result()
