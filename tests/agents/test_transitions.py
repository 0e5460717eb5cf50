"""Every (state, verb) pair of runs and tool calls: what the table allows happens, everything else changes no state."""

from __future__ import annotations

import contextlib

import pytest

from holdfast.agents.batches import steps
from holdfast.agents.batches.steps import defer
from holdfast.agents.people.inquiries import Ruling, decide
from holdfast.agents.runs import inbox
from holdfast.agents.runs.decision import Decision, run_inquiry
from holdfast.agents.runs.end import Conclusion, answer_open_calls
from holdfast.agents.runs.turn import Answer, ask_person, begin, commit, conclude
from holdfast.agents.states import CALL, RUN, CallState, CallVerb, InquiryState, RunState, RunVerb
from holdfast.errors import LeaseLost
from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.rows import Lease
from holdfast.models.batches import BatchLine
from holdfast.outcomes import Done, Fail
from tests.support.lives import HOUR_US, INTENT, PROMPT, REFUSALS, SPENT, Apply, OneRun


async def apply_begin(one: OneRun) -> object:
    return await one.do(begin, await one.play(await one.renewed()), PROMPT, INTENT)


async def apply_gather(one: OneRun) -> object:
    play = await one.play(await one.renewed())
    return await one.do(defer, play, PROMPT, INTENT, "{}", one.where(), HOUR_US)


async def move_runs(one: OneRun, before: RunState, state: RunState) -> None:
    await one.do(steps.move_runs, one.batch_lease, one.batch, before=before, state=state, prefix="")


async def apply_submit(one: OneRun) -> None:
    await move_runs(one, RunState.BATCH_SUBMITTING, RunState.BATCH_PENDING)


async def apply_process(one: OneRun) -> None:
    await move_runs(one, RunState.BATCH_SUBMITTING, RunState.BATCH_PROCESSING)
    await move_runs(one, RunState.BATCH_PENDING, RunState.BATCH_PROCESSING)


async def apply_commit(one: OneRun) -> None:
    await one.answered("look")


async def apply_collect(one: OneRun) -> None:
    await one.collect(one.succeeded())


async def apply_return(one: OneRun) -> None:
    await one.collect(BatchLine(one.request, "expired", None, None))


async def apply_ask(one: OneRun) -> object:
    play = await one.play(await one.renewed())
    return await one.do(ask_person, play, PROMPT, run_inquiry(play.run, play.number, "limit", {"limit": "turns"}))


async def apply_review(one: OneRun) -> None:
    for lease in await one.calls():
        await one.end_call(lease, Fail("gone"), "process_died")


async def apply_decide(one: OneRun) -> object:
    return await one.do(decide, Ruling(one.id, InquiryState.APPROVED), "")


async def apply_resume(one: OneRun) -> None:
    """Each of its calls ends, and so does what waits for a person."""
    for lease in await one.calls():
        await one.end_call(lease, Done("seen"))
    for row in await one.inquiries():
        await one.do(cancel, row.id, reason="no more")


async def apply_interrupt(one: OneRun) -> None:
    if await one.state() in (RunState.PENDING, RunState.STREAMING):
        await one.do(complete_and_settle, [release(one.lease)], [])
    await one.do(inbox.interrupt, one.id, "somebody", "")


async def apply_finish(one: OneRun) -> object:
    play = await one.play(await one.renewed())
    return await one.do(conclude, play, PROMPT, Conclusion("limited", "", limited="turns"))


async def apply_cancel(one: OneRun) -> None:
    if await one.state() in (RunState.PENDING, RunState.STREAMING):
        await one.do(complete_and_settle, [release(one.lease)], [])
    await one.do(cancel, one.id, reason="no more")


async def apply_fail(one: OneRun) -> None:
    """Its worker says so, or whoever finds that its time is over."""
    lease = await one.renewed()
    if not await one.do(complete_and_settle, [one.store.ending(lease, Fail("no"))], []):
        await one.fail_waiting()


# Each applies its verb under the best conditions the verb could wish for.
RUN_VERBS: dict[RunVerb, Apply] = {
    RunVerb.BEGIN: apply_begin,
    RunVerb.GATHER: apply_gather,
    RunVerb.SUBMIT: apply_submit,
    RunVerb.PROCESS: apply_process,
    RunVerb.COMMIT: apply_commit,
    RunVerb.COLLECT: apply_collect,
    RunVerb.RETURN: apply_return,
    RunVerb.ASK: apply_ask,
    RunVerb.REVIEW: apply_review,
    RunVerb.DECIDE: apply_decide,
    RunVerb.RESUME: apply_resume,
    RunVerb.INTERRUPT: apply_interrupt,
    RunVerb.FINISH: apply_finish,
    RunVerb.CANCEL: apply_cancel,
    RunVerb.FAIL: apply_fail,
}


@pytest.mark.sample(30)
@pytest.mark.parametrize("verb", RunVerb)
@pytest.mark.parametrize("source", RunState)
async def test_a_verb_does_to_a_run_what_the_table_says_or_nothing(
    one: OneRun, source: RunState, verb: RunVerb
) -> None:
    await one.bring(source)
    before = await one.row()
    move = RUN.move(source, verb)
    if move is None:
        try:
            await RUN_VERBS[verb](one)
        except REFUSALS:
            assert await one.row() == before
        assert await one.state() == source
        return
    await RUN_VERBS[verb](one)
    assert await one.state() in move.targets
    assert move.targets == (source,) or await one.row() != before


async def call_in(one: OneRun, state: CallState, *, asks: bool) -> Lease | None:
    """A call in that state, and the lease that its worker remembers; none has it while it waits for a person."""
    await one.make()
    await one.answered("buy" if asks and state is CallState.PENDING else "look")
    if asks and state is CallState.PENDING:
        return None
    (lease,) = await one.calls()
    match state:
        case CallState.PENDING:
            await one.do(complete_and_settle, [release(lease)], [lease.parent])
        case CallState.RUNNING:
            pass
        case CallState.COMPLETED:
            await one.end_call(lease, Done("seen"))
        case CallState.FAILED:
            await one.end_call(lease, Fail("no"))
        case CallState.SKIPPED:
            await one.do(answer_open_calls, await one.run())
    return lease


async def apply_to_call(one: OneRun, verb: CallVerb, lease: Lease | None) -> object:
    match verb:
        case CallVerb.START:
            return await one.calls()
        case CallVerb.ANSWER:
            return await one.do(decide, Ruling(one.id, InquiryState.ANSWERED, answer="bought"), "")
        case CallVerb.DENY:
            return await one.do(decide, Ruling(one.id, InquiryState.DENIED), "")
        case CallVerb.SKIP:
            return await one.do(answer_open_calls, await one.run())
    assert lease is not None
    match verb:
        case CallVerb.RELEASE:
            return await one.do(complete_and_settle, [release(lease)], [lease.parent])
        case CallVerb.COMPLETE:
            return await one.end_call(lease, Done("seen"))
        case CallVerb.FAIL:
            return await one.end_call(lease, Fail("no"))
        case CallVerb.REVIEW:
            return await one.end_call(lease, Fail("gone"), "process_died")


@pytest.mark.sample(16)
@pytest.mark.parametrize("verb", CallVerb)
@pytest.mark.parametrize("source", CallState)
async def test_a_verb_does_to_a_call_what_the_table_says_or_nothing(
    one: OneRun, source: CallState, verb: CallVerb
) -> None:
    lease = await call_in(one, source, asks=verb in (CallVerb.ANSWER, CallVerb.DENY))
    assert await one.call_state() == source
    move = CALL.move(source, verb)
    if move is None:
        with contextlib.suppress(*REFUSALS):
            await apply_to_call(one, verb, lease)
        assert await one.call_state() == source
        return
    await apply_to_call(one, verb, lease)
    assert await one.call_state() in move.targets


def test_every_verb_of_runs_has_its_operation() -> None:
    assert set(RUN_VERBS) == set(RunVerb)


async def test_an_answer_that_another_attempt_has_stored_is_no_repeat(one: OneRun) -> None:
    """A worker that was frozen has asked too. What it brings is refused, not taken for its own earlier call."""
    await one.make()
    frozen, stale = one.lease, await one.play()
    lease = await one.renewed()
    heir = await one.play(lease)
    assert await one.do(begin, heir, PROMPT, INTENT) == "begun"
    answer = Answer("scripted:", [{"type": "text", "text": "Done."}], "end_turn", SPENT, "request")
    decision = Decision(conclusion=Conclusion("answered", "Done."))
    assert await one.do(commit, heir, answer, decision) == "ended"
    assert await one.do(commit, heir, answer, decision) == "ended", "its own earlier call"
    assert stale.lease == frozen
    with pytest.raises(LeaseLost):
        await one.do(commit, stale, answer, decision)


async def test_an_answer_that_is_stored_again_is_counted_once(one: OneRun) -> None:
    await one.make()
    play = await one.play()
    answer = Answer("scripted:", [{"type": "text", "text": "Well."}], "max_tokens", SPENT, "request")
    for _ in range(2):  # the answer to the first call was lost
        assert await one.do(commit, play, answer, Decision(continuation="Go on.")) == "next"
    run = await one.run()
    assert (run.turns, run.tokens, run.cost_nano, run.continued) == (1, 30, 30, 1)
