"""Capsules: one run, with all below it and all that it saw, as a database of its own in one SQLite file.

Whatever reads a Holdfast database reads a capsule. Nothing in it is alive, so no worker takes anything from it, and
secrets are taken out before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.capsules.capsule_rows import (
    KeptAgent,
    KeptCall,
    KeptEvent,
    KeptInquiry,
    KeptJob,
    KeptMessage,
    KeptRun,
    KeptSession,
    KeptSteer,
    KeptTurn,
    KeptVersion,
)
from holdfast.agents.capsules.statements import CapsulesSql
from holdfast.agents.forks.past import Purpose, as_played
from holdfast.agents.forks.statements import ForksSql
from holdfast.agents.messages import LARGE
from holdfast.agents.rows import BlockRow, NewBlock
from holdfast.agents.statements import MessagesSql, RunsSql
from holdfast.agents.states import CallState, InquiryState, RunState
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.states import TERMINAL, State

_PARTIAL = "cancelled"


class Contents(NamedTuple):
    """What is in a capsule, row by row."""

    agents: list[KeptAgent]
    versions: list[KeptVersion]
    session: KeptSession
    runs: list[KeptRun]
    messages: list[KeptMessage]
    blocks: list[BlockRow]
    turns: list[KeptTurn]
    calls: list[KeptCall]
    events: list[KeptEvent]
    inquiries: list[KeptInquiry]
    steers: list[KeptSteer]
    jobs: list[KeptJob]


@reading
async def gather(tx: Transaction, id: str, tenant: str | None, *, partial: bool, to: Purpose = "export") -> Contents:
    """Everything of a run; `UsageError` when it has not ended, unless a part of it will do."""
    run = await tx.one(RunsSql.find_run, id=id)
    if run is None or tenant not in (None, run.tenant):
        raise NotFound(f"there is no run {id} in this database.")
    if run.parent is not None:
        raise UsageError(f"run {id} was called by run {run.parent}: export run {run.root}, the root of both.")
    if run.finalized_at is None and not partial:
        raise UsageError(f"run {id} is {run.state}: wait for its end, or export what there is of it (--partial).")
    session = await tx.one(CapsulesSql.kept_session, id=run.session)
    if session is None:
        raise NotFound(f"the session of run {id} no longer exists.")
    past = await as_played(tx, run, None, to)
    runs = await tx.many(CapsulesSql.kept_runs, root=id)
    ids = [each.id for each in runs]
    messages = await tx.many(
        CapsulesSql.kept_messages,
        session=run.session,
        ids=[message.id for message in past.messages],
        branches=[each.branch for each in runs if each.branch],
    )
    declined = {each.id for each in past.messages if not each.live and each.compacted is None and each.retired is None}
    sent = [each._replace(live=1) if not each.branch and each.id not in declined else each for each in messages]
    valid = {each.id: each.fingerprint for each in past.messages if each.fingerprint is not None}
    sent = [each._replace(fingerprint=valid.get(each.id, each.fingerprint)) for each in sent]
    calls = await tx.many(CapsulesSql.kept_calls, runs=ids)
    seqs = [each.job for each in runs] + [each.job for each in calls if each.job is not None]
    agents = sorted({each.agent for each in runs})
    used = {(each.agent, each.version) for each in runs}
    versions = [each for each in await tx.many(CapsulesSql.kept_versions, ids=agents) if each[:2] in used]
    return Contents(
        agents=await tx.many(CapsulesSql.kept_agents, ids=agents),
        versions=versions,
        session=session._replace(runs=run.ordinal, generation=past.generation),
        runs=[each._replace(generation=past.generation) for each in runs],
        messages=sent,
        blocks=await tx.many(MessagesSql.blocks_of, messages=[each.id for each in messages]),
        turns=[each._replace(generation=past.generation) for each in await tx.many(CapsulesSql.kept_turns, runs=ids)],
        calls=calls,
        events=await tx.many(CapsulesSql.kept_events, runs=ids),
        inquiries=await tx.many(CapsulesSql.kept_inquiries, runs=ids),
        steers=await tx.many(CapsulesSql.kept_steers, runs=ids),
        jobs=await tx.many(CapsulesSql.kept_jobs, seqs=seqs),
    )


def as_ended(contents: Contents, now: int) -> Contents:
    """With nothing that a worker could continue with: what is open is over, and says so."""
    return contents._replace(
        agents=[_with_version(agent, contents.versions) for agent in contents.agents],
        runs=[_ended_run(run, now) for run in contents.runs],
        calls=[
            call if call.state is not None else call._replace(state=CallState.SKIPPED, is_error=1, finished_at=now)
            for call in contents.calls
        ],
        inquiries=[
            each if each.state != InquiryState.OPEN else each._replace(state=InquiryState.WITHDRAWN, decided_at=now)
            for each in contents.inquiries
        ],
        jobs=[
            job if job.state in TERMINAL else job._replace(state=State.CANCELLED, finished_at=now)
            for job in contents.jobs
        ],
    )


def _with_version(agent: KeptAgent, versions: Sequence[KeptVersion]) -> KeptAgent:
    """Its present version may not be among those that were used."""
    return agent._replace(version=max(each.version for each in versions if each.agent == agent.id))


def _ended_run(run: KeptRun, now: int) -> KeptRun:
    if run.finalized_at is not None:
        return run
    why = f"it was exported while it was {run.state}."
    return run._replace(
        previous_state=run.state, state=RunState.CANCELLED, error_type=_PARTIAL, error_text=why, finalized_at=now
    )


async def fill(tx: Transaction, contents: Contents) -> None:
    """Write it all into a database that has nothing in it yet."""
    seqs = await _add_jobs(tx, contents.jobs)
    await tx.run(CapsulesSql.keep_session, **contents.session._asdict())
    for agent in contents.agents:
        await tx.run(CapsulesSql.keep_agent, **agent._asdict())
    for version in contents.versions:
        await tx.run(CapsulesSql.keep_version, **version._asdict())
    for run in contents.runs:
        await tx.run(CapsulesSql.keep_run, **run._replace(job=seqs.get(run.job, -run.job))._asdict())
    for message in contents.messages:
        await tx.run(CapsulesSql.keep_message, **message._asdict())
    for turn in contents.turns:
        await tx.run(CapsulesSql.keep_turn, **turn._asdict())
    for call in contents.calls:
        await tx.run(CapsulesSql.keep_call, **call._replace(job=seqs.get(call.job or 0))._asdict())
    for event in contents.events:
        await tx.run(CapsulesSql.keep_event, **event._asdict())
    for inquiry in contents.inquiries:
        await tx.run(CapsulesSql.keep_inquiry, **inquiry._asdict())
    for steer in contents.steers:
        await tx.run(CapsulesSql.keep_steer, **steer._asdict())
    await _add_blocks(tx, contents.blocks)


async def _add_jobs(tx: Transaction, jobs: Sequence[KeptJob]) -> dict[int, int]:
    """Their numbers here, by their numbers there. A parent has a smaller number than its children."""
    seqs: dict[int, int] = {}
    for job in jobs:
        given: dict[str, Any] = job._replace(parent=seqs.get(job.parent or 0))._asdict()
        made = await tx.one(CapsulesSql.keep_job, **given)
        assert made is not None
        await tx.run(CapsulesSql.end_kept_job, **{**given, "seq": made.seq})
        seqs[job.seq] = made.seq
    return seqs


async def _add_blocks(tx: Transaction, blocks: Sequence[BlockRow]) -> None:
    rows = []
    for block in blocks:
        blob = codec.digest(block.body) if len(block.body) > LARGE else None
        if blob is not None:
            await tx.run(MessagesSql.add_blob, hash=blob, body=block.body)
        rows.append(NewBlock(block.message, block.ordinal, block.type, None if blob else block.body, blob))
    if rows:
        await tx.run(ForksSql.add_blocks, blocks=rows)
