"""Every (state, verb) pair of turns, batches, requests, compactions and inquiries, on rows put into each state."""

from __future__ import annotations

import pytest

from holdfast.agents.batches import steps
from holdfast.agents.batches.records import AppliedResult, BatchesSql
from holdfast.agents.batches.steps import defer
from holdfast.agents.compaction.records import CompactionsSql
from holdfast.agents.people.inquiries import Ruling, decide
from holdfast.agents.people.records import InquiriesSql
from holdfast.agents.retention.records import PruningSql
from holdfast.agents.rows import EndedTurn
from holdfast.agents.runs.turn import begin, fail_turn
from holdfast.agents.statements import RunsSql, SessionsSql
from holdfast.agents.states import (
    BATCH,
    COMPACTION,
    INQUIRY,
    REQUEST,
    TURN,
    BatchState,
    BatchVerb,
    CompactionState,
    CompactionVerb,
    InquiryState,
    InquiryVerb,
    RequestState,
    RequestVerb,
    RunState,
    TurnState,
    TurnVerb,
)
from tests.support.lives import HOUR_US, INTENT, PROMPT, SPENT, Apply, OneRun, assert_moved

# Turns


async def complete_turn(one: OneRun) -> None:
    spent = SPENT.counters()
    answer = EndedTurn(one.id, 1, RunState.STREAMING, "r", "end_turn", "{}", "scripted:", None, 0, **spent)
    await one.run_statement(RunsSql.end_turns, answers=[answer])


async def refuse_turn(one: OneRun) -> None:
    await one.run_statement(BatchesSql.fail_batched, run=one.id, number=1, error="{}")


async def retry_turn(one: OneRun) -> None:
    await one.run_statement(BatchesSql.retry_turns, runs=[one.id], error="{}", unknown=0)


async def abandon_turn(one: OneRun) -> None:
    await one.run_statement(RunsSql.abandon_calls, runs=[one.id], error="{}")


async def begin_turn(one: OneRun) -> None:
    await one.do(begin, await one.play(await one.renewed()), PROMPT, INTENT)


async def gather_turn(one: OneRun) -> None:
    await one.do(defer, await one.play(await one.renewed()), PROMPT, INTENT, "{}", one.where(), HOUR_US)


async def fail_this_turn(one: OneRun) -> None:
    await one.do(fail_turn, await one.play(), {"kind": "cut"}, unknown=False, counted=True)


TURN_VERBS: dict[TurnVerb, Apply] = {
    TurnVerb.BEGIN: begin_turn,
    TurnVerb.GATHER: gather_turn,
    TurnVerb.COMPLETE: complete_turn,
    TurnVerb.FAIL: fail_this_turn,
    TurnVerb.REFUSE: refuse_turn,
    TurnVerb.RETRY: retry_turn,
    TurnVerb.ABANDON: abandon_turn,
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("verb", TurnVerb)
@pytest.mark.parametrize("source", TurnState)
async def test_a_verb_does_to_a_turn_what_the_table_says_or_nothing(
    one: OneRun, source: TurnState, verb: TurnVerb
) -> None:
    await one.make()
    await one.set("turn", f"state = '{source}'")
    await assert_moved(one, "turn", source, TURN.move(source, verb), TURN_VERBS[verb])


# Batches


async def close_batch(one: OneRun) -> None:
    found = await one.do(steps.find_batch, one.batch)
    await one.do(steps.close, one.batch_lease, found, one.where())


async def intend(one: OneRun) -> None:
    await one.do(steps.intend, one.batch_lease, one.batch)


async def refuse_batch(one: OneRun) -> None:
    await one.do(steps.refused, one.batch_lease, one.batch, "no", troubled=True)


async def search(one: OneRun) -> None:
    await one.do(steps.search, one.batch_lease, one.batch, "lost")


async def take(one: OneRun) -> None:
    await one.do(steps.take, one.batch_lease, one.batch, "theirs")


async def offer(one: OneRun) -> None:
    """Only what was intended can be there; a batch that came too late gets a row of its own."""
    await one.set("batch", "intent_at = 1")
    await one.run_statement(BatchesSql.offer_batch, id=one.batch, provider_id="theirs")


async def poll(one: OneRun) -> None:
    await one.do(steps.note_poll, one.batch_lease, one.batch, BatchState.CANCELING, {})
    await one.do(steps.note_poll, one.batch_lease, one.batch, BatchState.COLLECTING, {})


async def end_batch(one: OneRun) -> None:
    await one.do(steps.end, one.batch_lease, one.batch, BatchState.ENDED, None)


async def fail_batch(one: OneRun) -> None:
    await one.do(steps.end, one.batch_lease, one.batch, BatchState.FAILED, "no")


async def prune_batch(one: OneRun) -> None:
    await one.do(steps.prune_batches, -1)


BATCH_VERBS: dict[BatchVerb, Apply] = {
    BatchVerb.CLOSE: close_batch,
    BatchVerb.INTEND: intend,
    BatchVerb.REFUSE: refuse_batch,
    BatchVerb.SEARCH: search,
    BatchVerb.TAKE: take,
    BatchVerb.OFFER: offer,
    BatchVerb.POLL: poll,
    BatchVerb.END: end_batch,
    BatchVerb.FAIL: fail_batch,
    BatchVerb.PRUNE: prune_batch,
}


@pytest.mark.sample(20)
@pytest.mark.parametrize("verb", BatchVerb)
@pytest.mark.parametrize("source", BatchState)
async def test_a_verb_does_to_a_batch_what_the_table_says_or_nothing(
    one: OneRun, source: BatchState, verb: BatchVerb
) -> None:
    await one.bring(RunState.BATCH_SUBMITTING)
    ended = "1" if source in BATCH.final else "null"
    await one.set("batch", f"state = '{source}', ended_at = {ended}")
    await assert_moved(one, "batch", source, BATCH.move(source, verb), BATCH_VERBS[verb])


@pytest.mark.parametrize("into", [BatchState.ENDED, BatchState.FAILED])
@pytest.mark.parametrize("source", BatchState)
async def test_the_end_of_a_batch_says_whether_it_was_stored(one: OneRun, source: BatchState, into: BatchState) -> None:
    await one.bring(RunState.BATCH_SUBMITTING)
    ended = "1" if source in BATCH.final else "null"
    await one.set("batch", f"state = '{source}', ended_at = {ended}")
    verb = BatchVerb.END if into is BatchState.ENDED else BatchVerb.FAIL
    moves = BATCH.move(source, verb) is not None
    assert await one.do(steps.end, one.batch_lease, one.batch, into, None) is moves


# Requests of batches


async def send_request(one: OneRun) -> None:
    await one.run_statement(BatchesSql.send_requests, batch=one.batch)


async def apply_request(one: OneRun) -> None:
    await one.run_statement(BatchesSql.apply_requests, applied=[AppliedResult(one.request, "succeeded", None)])


async def keep_request(one: OneRun) -> None:
    await one.run_statement(BatchesSql.apply_requests, applied=[AppliedResult(one.request, "succeeded", "{}")])


async def take_request(one: OneRun) -> None:
    await one.run_statement(BatchesSql.take_answer, custom_id=one.request)


async def drop_request(one: OneRun) -> None:
    await one.run_statement(BatchesSql.drop_turn, run=one.id, turn=1)


async def forget_request(one: OneRun) -> None:
    await one.run_statement(SessionsSql.forget_batched, id=(await one.run()).session)


REQUEST_VERBS: dict[RequestVerb, Apply] = {
    RequestVerb.SEND: send_request,
    RequestVerb.APPLY: apply_request,
    RequestVerb.KEEP: keep_request,
    RequestVerb.TAKE: take_request,
    RequestVerb.DROP: drop_request,
    RequestVerb.FORGET: forget_request,
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("verb", RequestVerb)
@pytest.mark.parametrize("source", RequestState)
async def test_a_verb_does_to_a_request_what_the_table_says_or_nothing(
    one: OneRun, source: RequestState, verb: RequestVerb
) -> None:
    await one.bring(RunState.BATCH_SUBMITTING)
    await one.set("batch_request", f"state = '{source}'")
    await assert_moved(one, "batch_request", source, REQUEST.move(source, verb), REQUEST_VERBS[verb])


# Compactions


async def begin_compaction(one: OneRun, attempts: int = 1) -> None:
    given = {"strategy": "hybrid", "trigger": "manual", "model": "scripted:", "config": "{}", "generation": ""}
    session = (await one.run()).session
    await one.run_statement(
        CompactionsSql.begin_compaction,
        id="c",
        session=session,
        run=None,
        tokens_before=1,
        attempts=attempts,
        **given,
    )


async def end_compaction(one: OneRun) -> None:
    given = {"tokens_after": 1, "removed": 0, "pruned": 0, "summary": None}
    await one.run_statement(CompactionsSql.end_compaction, id="c", attempts=1, **given)


async def fail_compaction(one: OneRun) -> None:
    await one.run_statement(CompactionsSql.fail_compaction, id="c", attempts=1, error="no", unknown=0)


async def restore_compaction(one: OneRun) -> None:
    await one.run_statement(CompactionsSql.restore_compaction, id="c")


COMPACTION_VERBS: dict[CompactionVerb, Apply] = {
    CompactionVerb.BEGIN: begin_compaction,
    CompactionVerb.END: end_compaction,
    CompactionVerb.FAIL: fail_compaction,
    CompactionVerb.RESTORE: restore_compaction,
}


@pytest.mark.parametrize("verb", CompactionVerb)
@pytest.mark.parametrize("source", CompactionState)
async def test_a_verb_does_to_a_compaction_what_the_table_says_or_nothing(
    one: OneRun, source: CompactionState, verb: CompactionVerb
) -> None:
    await one.make()
    await begin_compaction(one)
    await one.set("compaction", f"state = '{source}'")
    await assert_moved(one, "compaction", source, COMPACTION.move(source, verb), COMPACTION_VERBS[verb])


# Inquiries


async def approve(one: OneRun) -> None:
    await one.do(decide, Ruling(one.id, InquiryState.APPROVED), "")


async def deny(one: OneRun) -> None:
    await one.do(decide, Ruling(one.id, InquiryState.DENIED), "")


async def answer(one: OneRun) -> None:
    await one.do(decide, Ruling(one.id, InquiryState.ANSWERED, answer="bought"), "")


async def expire(one: OneRun) -> None:
    await one.do(decide, Ruling(one.id, InquiryState.EXPIRED), "")


async def withdraw(one: OneRun) -> None:
    await one.run_statement(InquiriesSql.withdraw_inquiries, run=one.id)


async def prune(one: OneRun) -> None:
    await one.run_statement(PruningSql.prune_inquiries, roots=[one.id], limit=10)


INQUIRY_VERBS: dict[InquiryVerb, Apply] = {
    InquiryVerb.APPROVE: approve,
    InquiryVerb.DENY: deny,
    InquiryVerb.ANSWER: answer,
    InquiryVerb.EXPIRE: expire,
    InquiryVerb.WITHDRAW: withdraw,
    InquiryVerb.PRUNE: prune,
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("verb", InquiryVerb)
@pytest.mark.parametrize("source", InquiryState)
async def test_a_verb_does_to_an_inquiry_what_the_table_says_or_nothing(
    one: OneRun, source: InquiryState, verb: InquiryVerb
) -> None:
    await one.make()
    await one.answered("buy")
    decided = "null" if source is InquiryState.OPEN else "1"
    await one.set("inquiry", f"state = '{source}', decided_at = {decided}")
    await assert_moved(one, "inquiry", source, INQUIRY.move(source, verb), INQUIRY_VERBS[verb])


@pytest.mark.parametrize(
    ("late", "verdict"), [("approve", approve), ("deny", deny), ("answer", answer)], ids=lambda each: str(each)[:7]
)
async def test_after_its_time_the_default_decides_an_inquiry(one: OneRun, late: str, verdict: Apply) -> None:
    await one.make()
    await one.answered("buy")
    await one.set("inquiry", "expires_at = 1")
    await verdict(one)
    assert await one.state("inquiry") == InquiryState.EXPIRED
    move = INQUIRY.move(InquiryState.OPEN, InquiryVerb(late))
    assert move is not None
    assert InquiryState.EXPIRED in move.targets


def test_every_verb_has_its_operation() -> None:
    assert set(TURN_VERBS) == set(TurnVerb)
    assert set(BATCH_VERBS) == set(BatchVerb)
    assert set(REQUEST_VERBS) == set(RequestVerb)
    assert set(COMPACTION_VERBS) == set(CompactionVerb)
    assert set(INQUIRY_VERBS) == set(InquiryVerb)
