"""Capsules: one run, with all below it and all that it saw, as a database of its own in one SQLite file.

Whatever reads a Holdfast database reads a capsule. Nothing in it is alive, so no worker takes anything from it, and
secrets are taken out before anything is written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.agents.capsules.records import (
    CapsuleAgent,
    CapsuleCall,
    CapsuleEvent,
    CapsuleInquiry,
    CapsuleJob,
    CapsuleMessage,
    CapsuleRun,
    CapsuleSession,
    CapsulesSql,
    CapsuleSteer,
    CapsuleTurn,
    CapsuleVersion,
)
from holdfast.agents.forks.fork import EDITED
from holdfast.agents.forks.past import Purpose, as_played
from holdfast.agents.forks.records import ForksSql
from holdfast.agents.messages import LARGE
from holdfast.agents.rows import BlockRow, NewBlock
from holdfast.agents.statements import MessagesSql, RunsSql
from holdfast.agents.states import CallState, InquiryState, RunState
from holdfast.clock import Ports
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec, migrate
from holdfast.kernel.database import Transaction, reading, unbound
from holdfast.kernel.drivers import connect
from holdfast.kernel.states import TERMINAL, State
from holdfast.settings import Settings
from holdfast.text import NoRedaction, Redactor

_PARTIAL = "cancelled"


class CapsuleContents(NamedTuple):
    """What is in a capsule, row by row."""

    agents: list[CapsuleAgent]
    versions: list[CapsuleVersion]
    session: CapsuleSession
    runs: list[CapsuleRun]
    messages: list[CapsuleMessage]
    blocks: list[BlockRow]
    turns: list[CapsuleTurn]
    calls: list[CapsuleCall]
    events: list[CapsuleEvent]
    inquiries: list[CapsuleInquiry]
    steers: list[CapsuleSteer]
    jobs: list[CapsuleJob]


@reading
async def gather(
    tx: Transaction, id: str, tenant: str | None, *, partial: bool, to: Purpose = "export"
) -> CapsuleContents:
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
    return CapsuleContents(
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


def as_ended(contents: CapsuleContents, now: int) -> CapsuleContents:
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


def _with_version(agent: CapsuleAgent, versions: Sequence[CapsuleVersion]) -> CapsuleAgent:
    """Its present version may not be among those that were used."""
    return agent._replace(version=max(each.version for each in versions if each.agent == agent.id))


def _ended_run(run: CapsuleRun, now: int) -> CapsuleRun:
    if run.finalized_at is not None:
        return run
    why = f"it was exported while it was {run.state}."
    return run._replace(
        previous_state=run.state, state=RunState.CANCELLED, error_type=_PARTIAL, error_text=why, finalized_at=now
    )


async def fill(tx: Transaction, contents: CapsuleContents) -> None:
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


async def _add_jobs(tx: Transaction, jobs: Sequence[CapsuleJob]) -> dict[int, int]:
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


# The seal: a capsule's rows without their secrets. Pure.
#
# What a model said piece by piece is looked at as a whole: a secret may begin in one event and end in the next.


_DELTAS = ("text_delta", "thinking_delta", "input_delta")


def sealed(contents: CapsuleContents, redactor: Redactor) -> CapsuleContents:
    """The same without secrets. Thinking after a message that was changed is not valid any more, and marked so."""
    blocks = [block._replace(body=redactor.json(block.body)) for block in contents.blocks]
    versions = [each._replace(definition=_definition(each.definition, redactor)) for each in contents.versions]
    asked = blocks != contents.blocks or versions != contents.versions  # for other things than were asked for then
    session = contents.session
    return contents._replace(
        agents=[
            agent._replace(description=redactor.text(agent.description), metadata=redactor.json(agent.metadata, "all"))
            for agent in contents.agents
        ],
        versions=versions,
        session=session._replace(key=redactor.maybe(session.key), metadata=redactor.json(session.metadata, "all")),
        runs=[_run(run, redactor) for run in contents.runs],
        messages=_marked(contents.messages, _changed(contents.blocks, blocks)),
        blocks=blocks,
        turns=[
            turn._replace(error=redactor.maybe_json(turn.error), request_hash="" if asked else turn.request_hash)
            for turn in contents.turns
        ],
        calls=[_call(call, redactor) for call in contents.calls],
        events=_events(contents.events, redactor),
        inquiries=[_inquiry(inquiry, redactor) for inquiry in contents.inquiries],
        steers=[steer._replace(body=redactor.json(steer.body)) for steer in contents.steers],
        jobs=[_job(job, redactor) for job in contents.jobs],
    )


def without_traces(contents: CapsuleContents) -> CapsuleContents:
    """The same without tracebacks, which name files of the program and have lines of them."""
    return contents._replace(
        calls=[call._replace(output=_traceless(call.output)) if call.is_error else call for call in contents.calls],
        jobs=[job._replace(error=_traceless(job.error)) for job in contents.jobs],
    )


def _traceless(text: str | None) -> str | None:
    decoded = None if text is None else codec.decode(text)
    if not isinstance(decoded, dict) or "trace" not in decoded:
        return text
    return _json({name: value for name, value in decoded.items() if name != "trace"})


def _definition(text: str, redactor: Redactor) -> str:
    """What is sent to the provider goes by its names; a tool's schema only describes what has such a name."""
    plain = codec.decode(redactor.json(text))
    sent = {name: plain[name] for name in ("options", "server_tools") if plain.get(name)}
    left = {name: codec.decode(redactor.json(_json(value), "all")) for name, value in sent.items()}
    redacted = {**plain, **left}
    return text if redacted == codec.decode(text) else _json(redacted)


def _run(run: CapsuleRun, redactor: Redactor) -> CapsuleRun:
    return run._replace(
        input=redactor.json(run.input),
        variables=redactor.json(run.variables, "all"),
        metadata=redactor.json(run.metadata, "all"),
        options=redactor.json(run.options, "all"),
        output=redactor.maybe_json(run.output, "arguments"),
        refusal=redactor.maybe_json(run.refusal),
        limited=redactor.maybe(run.limited),
        error_text=redactor.maybe(run.error_text),
    )


def _call(call: CapsuleCall, redactor: Redactor) -> CapsuleCall:
    return call._replace(input=redactor.json(call.input, "arguments"), output=redactor.maybe_json(call.output))


def _inquiry(inquiry: CapsuleInquiry, redactor: Redactor) -> CapsuleInquiry:
    return inquiry._replace(
        data=redactor.json(inquiry.data),
        otherwise=redactor.maybe_json(inquiry.otherwise),
        decision=redactor.maybe_json(inquiry.decision),
    )


def _job(job: CapsuleJob, redactor: Redactor) -> CapsuleJob:
    return job._replace(
        payload=redactor.json(job.payload, "arguments"),
        metadata=redactor.json(job.metadata, "all"),
        result=redactor.maybe_json(job.result, "arguments"),
        error=redactor.maybe_json(job.error),
    )


def _changed(before: Sequence[BlockRow], after: Sequence[BlockRow]) -> set[str]:
    return {new.message for old, new in zip(before, after, strict=True) if old.body != new.body}


def _marked(messages: Sequence[CapsuleMessage], changed: set[str]) -> list[CapsuleMessage]:
    marked: list[CapsuleMessage] = []
    for _, branch in groupby(messages, key=lambda message: message.branch):
        stale = False
        for message in branch:
            stale = stale or message.id in changed
            marked.append(message._replace(fingerprint=EDITED) if stale and message.kind == "answer" else message)
    return marked


def _events(events: Sequence[CapsuleEvent], redactor: Redactor) -> list[CapsuleEvent]:
    said: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    read = [(event, codec.decode(event.data)) for event in events]
    for event, data in read:
        if event.type in _DELTAS:
            said[_block_of(event, data)].append(data)
    whole = {block: _without(pieces, block[1], redactor) for block, pieces in said.items()}
    kept: list[CapsuleEvent] = []
    for event, data in read:
        if event.type not in _DELTAS:
            kept.append(event._replace(data=redactor.json(event.data)))
            continue
        pieces = whole[_block_of(event, data)]
        kept.append(event if pieces is None else event._replace(data=_json({**data, **pieces.pop(0)})))
    return kept


def _block_of(event: CapsuleEvent, data: dict[str, Any]) -> tuple[Any, ...]:
    return event.run, event.type, data.get("turn"), data.get("index")


def _without(pieces: Sequence[dict[str, Any]], type: str, redactor: Redactor) -> list[dict[str, Any]] | None:
    """The pieces of a block, all that is left of it in the first; None when there was nothing to take out."""
    text = "".join(str(piece.get("text", "")) for piece in pieces)
    left = _redacted(text, type, redactor)
    if left == text:
        return None
    return [{"offset": 0, "text": left}, *({"offset": len(left), "text": ""} for _ in pieces[1:])]


def _redacted(text: str, type: str, redactor: Redactor) -> str:
    if type != "input_delta":
        return redactor.text(text)
    try:
        return redactor.json(text, "arguments")
    except ValueError:  # it was cut off, or begun again
        return redactor.text(text)


def _json(value: Any) -> str:
    return codec.encode(value, what="an event", cap=1 << 28)


# Export: a capsule as a file. It is there whole, or not at all.


class Exported(NamedTuple):
    """A capsule that was written: where, of which run, with how much in it, and how many secrets were taken out."""

    path: Path
    run: str
    runs: int
    messages: int
    redactions: int


async def export(
    contents: CapsuleContents, path: Path, settings: Settings, ports: Ports, *, redact: Sequence[str] | None
) -> Exported:
    """Write a capsule. `redact`: what else is a secret; None for a copy that nobody else sees."""
    if await asyncio.to_thread(path.exists):
        raise UsageError(f"{path} already exists; choose another file, or remove it first.")
    redactor = NoRedaction() if redact is None else Redactor(redact)
    closed = sealed(as_ended(contents, ports.clock.wall_us()), redactor)
    try:
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=path.parent, prefix=".capsule-"))
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}.") from problem
    try:
        with unbound():  # the file is new: who may only read the store may fill it
            await _write(folder / "run.db", closed, settings, ports)
        await asyncio.to_thread(os.replace, folder / "run.db", path)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)
    return Exported(path, closed.runs[0].root, len(closed.runs), len(closed.messages), redactor.count)


async def _write(path: Path, contents: CapsuleContents, settings: Settings, ports: Ports) -> None:
    url = f"sqlite:///{path}"
    database = connect(url, replace(settings, url=url, direct_url="", pooler=False), ports)
    await database.connect()
    try:
        await migrate.migrate(database, settings.schema)
    finally:
        await database.close()
    database = connect(url, replace(settings, url=url, direct_url="", pooler=False), ports)
    await database.open()
    try:
        await database.transact(fill, contents)
    finally:
        await database.close()
