"""Outcomes that handlers get wrong: the job ends all the same, and says what was wrong."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Cancel, Discard, Holdfast, Retry, RunFailed
from holdfast.outcomes import Fail


class Odd(BaseException):
    """Not an Exception, and none of ours."""


@pytest.mark.parametrize("reason", [ValueError("bad"), None, 7], ids=["an exception", "nothing", "a number"])
async def test_a_reason_that_is_no_text_is_stored_as_text(hf: Holdfast, reason: Any) -> None:
    @hf.job
    async def give_up() -> object:
        return Fail(reason)

    @hf.job
    async def discard() -> None:
        raise Discard(reason)

    @hf.job
    async def cancel() -> None:
        raise Cancel(reason)

    async with hf:
        for function, state in ((give_up, "failed"), (discard, "failed"), (cancel, "cancelled")):
            job = await function.enqueue()
            with pytest.raises(RunFailed, match=str(reason)):
                await job.result()
            assert job.state == state


async def test_a_wait_that_cannot_be_stored_ends_the_attempt(hf: Holdfast) -> None:
    @hf.job(retry=Retry(attempts=1))
    async def odd() -> None:
        raise Odd("strange")

    async with hf:
        job = await odd.enqueue()
        with pytest.raises(RunFailed, match="strange"):
            await job.result()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Odd])
@pytest.mark.parametrize("how", ["async", "async with a timeout", "sync"])
async def test_what_is_no_exception_fails_the_attempt_and_its_traceback_is_kept(
    hf: Holdfast, kind: type[BaseException], how: str
) -> None:
    def strange() -> None:
        raise kind("strange")

    async def strange_async() -> None:
        strange()

    timeout = "1m" if how.endswith("timeout") else None
    declared: Any = hf.job(retry=Retry(attempts=1), timeout=timeout)(strange if how == "sync" else strange_async)
    async with hf:
        job = await declared.enqueue()
        with pytest.raises(RunFailed, match=f"{kind.__name__}: strange"):
            await job.result()
        (attempt,) = await hf.jobs.attempts(job.id)
        assert "in strange" in str(attempt.error)


async def test_a_returned_policy_is_not_taken_for_a_result(hf: Holdfast) -> None:
    @hf.job
    async def confused() -> object:
        return Retry(attempts=3)

    async with hf:
        job = await confused.enqueue()
        with pytest.raises(RunFailed, match=r"holdfast\.outcomes\.TryAgain") as caught:
            await job.result()
        assert caught.value.type == "result_error"
