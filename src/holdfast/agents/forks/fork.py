"""A fork: a session of its own with a copy of what was said, up to some place, and a run that continues from there.

The original is only read. A copy keeps the bytes of what was said and under which request it was said, so that signed
thinking stays valid; after the first thing that was changed it does not, and is left out of what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.agents.compaction.records import CompactionsSql
from holdfast.agents.definition import AgentSpec
from holdfast.agents.events.log import Changes, created
from holdfast.agents.forks.past import as_played, check_whole, latest_whole
from holdfast.agents.forks.records import ForksSql, MessageCopy, PastMessage
from holdfast.agents.messages import add_message, encode_block
from holdfast.agents.rows import CallRow, NewBlock, NewRun, RunRow
from holdfast.agents.statements import AgentsSql, CallsSql, MessagesSql, RunsSql
from holdfast.errors import IdempotencyConflict, NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue, take_key
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import NewJob, Route
from holdfast.models.request_view import CONTINUE
from holdfast.text import plural

EDITED = "edited"  # no request has this fingerprint

Results = Mapping[str, Any]


class ForkedRun(NamedTuple):
    run: str
    session: str


class ForkOrigin(NamedTuple):
    """A run that is to be forked, and the agent it was of."""

    run: RunRow
    spec: AgentSpec


class ForkRequest(NamedTuple):
    """A fork of a run, as it is asked for. Every id is made before: doing it again makes nothing twice."""

    source: str
    session: str
    job: NewJob
    route: Route
    at: int | None
    prompt: str | None  # the blocks of another prompt
    results: str  # the results that the model is to have read, by call or name
    options: str
    mode: str
    key: str | None = None
    tenant: str | None = None  # None: any


@reading
async def find_origin(tx: Transaction, id: str, tenant: str | None) -> ForkOrigin:
    """The run that is to be forked; `UsageError` when it cannot be."""
    run = await tx.one(RunsSql.find_run, id=id)
    if run is None or tenant not in (None, run.tenant):
        raise NotFound(f"there is no run {id} in this database.")
    if run.parent is not None:
        raise UsageError(f"run {id} was called by run {run.parent}: fork run {run.root}, the root of both.")
    version = await tx.one(AgentsSql.find_version, agent=run.agent, version=run.version)
    if version is None:
        raise NotFound(f"version {run.version} of agent {run.agent_name!r} is no longer in this database.")
    return ForkOrigin(run, AgentSpec.parse(version.definition))


@reading
async def find_fork(tx: Transaction, run: str) -> tuple[str, int] | None:
    found = await tx.one(ForksSql.fork_of, run=run)
    return None if found is None or found.forked_from is None else (found.forked_from, found.forked_at or 1)


async def fork_session(tx: Transaction, source: str, new: str, *, at: int | None, key: str | None, tenant: str) -> str:
    """Copy the conversation up to the message of this ordinal, or all of it, into a new session; returns its id."""
    if (made := await _already(tx, source, new, at, key, tenant)) is not None:
        return made
    held = await tx.one(CompactionsSql.hold_generation, id=source)
    if held is None:
        raise NotFound(f"there is no session {source} in this database.")
    past = await tx.many(ForksSql.past, session=source)
    live = [message for message in past if message.live]
    if at is not None and past and at > past[-1].ordinal:
        raise UsageError(f"session {source} has no message {at}: its last is {past[-1].ordinal}.")
    if at is None:
        kept = latest_whole(live)
    else:
        kept = [message for message in live if message.ordinal <= at]
        check_whole(kept, at)
    copies = [MessageCopy(derived_id(new, "copy", each.id), each.id, each.run, None) for each in kept]
    await tx.run(ForksSql.add_fork, id=new, source=source, key=key, generation=held.generation, runs=0, at=at)
    if key is not None and (made := await _already(tx, source, new, at, key, tenant)) not in (None, new):
        return str(made)  # somebody was quicker
    await _write(tx, new, copies, [])
    return new


async def _already(  # noqa: PLR0917  what makes it the same fork
    tx: Transaction, source: str, new: str, at: int | None, key: str | None, tenant: str
) -> str | None:
    found = await tx.one(ForksSql.find_fork, id=new, key=key, tenant=tenant)
    if found is None:
        return None
    if found.forked_from != source:
        raise UsageError(f"key {key!r} names session {found.id}, which is not a fork of session {source}.")
    if found.forked_at != at:
        raise IdempotencyConflict(key or "", found.id)
    return found.id


async def fork_run(tx: Transaction, wish: ForkRequest, prefix: str) -> ForkedRun:
    """Make a run that continues where another one was, with what is to be different."""
    source = (await find_origin(tx, wish.source, wish.tenant)).run
    if wish.key is not None and (other := await _owner(tx, wish, wish.key)) is not None:
        return other
    if await tx.one(CompactionsSql.hold_generation, id=source.session) is None:
        raise NotFound(f"the session of run {source.id} no longer exists.")
    if not await enqueue(tx, [wish.job], [wish.route]):
        return ForkedRun(wish.job.id, wish.session)  # an earlier call did it, and its answer was lost
    calls = await tx.many(CallsSql.calls_of, run=source.id, turn=None)
    edits = _edits(calls, codec.decode(wish.results), wish.at)
    at = _place(source, wish, edits, calls)
    past = await as_played(tx, source, at)
    if wish.prompt is not None:  # in the place of whatever was asked at first
        kept = [each for each in past.messages if each.run != source.id or each.kind == "prompt"]
        past = past._replace(messages=kept)
    session = {"id": wish.session, "source": source.session, "key": None, "generation": past.generation}
    await tx.run(ForksSql.add_fork, **session, runs=1, at=None)
    changed = await _changed(tx, past.messages, source.id, edits, wish.prompt)
    await _write(tx, wish.session, *_copies(past.messages, source.id, wish.job.id, wish.session, changed))
    run = NewRun(
        id=wish.job.id,
        session=wish.session,
        branch="",
        ordinal=1,
        tenant=source.tenant,
        agent=source.agent,
        agent_name=source.agent_name,
        version=source.version,
        mode=wish.mode,
        parent=None,
        call=None,
        root=wish.job.id,
        depth=0,
        input=wish.prompt or source.input,
        variables=source.variables,
        metadata=source.metadata,
        options=wish.options,
    )
    await tx.run(RunsSql.add_runs, runs=[run])
    continued = sum(each.kind == "continuation" and each.run == source.id for each in past.messages)
    if past.cut:
        await add_message(tx, run, "continuation", at - 1, [{"type": "text", "text": CONTINUE}])
        continued += 1
    marks = {"generation": past.generation, "continued": continued, "turns": at - 1, "source": source.id, "at": at}
    await tx.run(ForksSql.mark_fork, id=run.id, **marks)
    changes = Changes(prefix)
    changes.tell(run.id, "run_created", created(run), topic="run_created")
    await changes.write(tx)
    return ForkedRun(run.id, run.session)


async def _owner(tx: Transaction, wish: ForkRequest, key: str) -> ForkedRun | None:
    """The fork that the key names already."""
    parts = ("fork", wish.source, str(wish.at), wish.prompt or "", wish.results, wish.options, wish.mode)
    meaning = codec.digest("\x1f".join(parts))
    owner = await take_key(tx, wish.job.tenant, key, meaning, wish.job.id)
    if owner is None or (owner.job == wish.job.id and owner.digest == meaning):
        return None
    if owner.digest != meaning:
        raise IdempotencyConflict(key, owner.job)
    row = await tx.one(RunsSql.find_run, id=owner.job)
    if row is None:
        raise UsageError(f"key {key!r} belongs to job {owner.job}, which is not a run.")
    return ForkedRun(row.id, row.session)


def _edits(calls: Sequence[CallRow], results: Results, at: int | None) -> dict[str, Any]:
    """The result that the model is to have read for each call, by the id that the model gave it."""
    before = [call for call in calls if at is None or call.turn < at]
    edits: dict[str, Any] = {}
    for name, output in results.items():
        meant = [call for call in before if name in (call.id, call.tool_use_id, call.name)]
        if not meant:
            known = ", ".join(f"{call.name} ({call.id})" for call in before) or "none"
            raise UsageError(f"there is no call {name!r} before the fork; there are: {known}.")
        if len(meant) > 1:
            known = ", ".join(call.id for call in meant)
            raise UsageError(f"{name!r} was called {len(meant)} times; name one of the calls: {known}.")
        edits[meant[0].tool_use_id] = output
    return edits


def _place(source: RunRow, wish: ForkRequest, edits: Mapping[str, Any], calls: Sequence[CallRow]) -> int:
    """The turn that is played first."""
    if wish.prompt is not None and (edits or wish.at not in (None, 1)):
        raise UsageError("a new prompt needs a fork from the beginning: use at=1, without results=.")
    edited = [call.turn for call in calls if call.tool_use_id in edits]
    at = wish.at or max(edited, default=0) + 1
    if not 1 <= at <= source.turns + 1:
        raise UsageError(
            f"run {source.id} has {plural(source.turns, 'turn')}: fork it at 1 to {source.turns + 1}, not {at}."
        )
    return at


async def _changed(
    tx: Transaction, kept: Sequence[PastMessage], run: str, edits: Mapping[str, Any], prompt: str | None
) -> dict[str, list[dict[str, Any]]]:
    """The messages that are not copied as they are, with their blocks."""
    changed: dict[str, list[dict[str, Any]]] = {}
    mine = [message for message in kept if message.run == run]
    if prompt is not None:
        changed |= {each.id: codec.decode(prompt) for each in mine if each.kind == "prompt"}
    results = [each.id for each in mine if each.kind == "results"] if edits else []
    for row in await tx.many(MessagesSql.blocks_of, messages=results) if results else []:
        changed.setdefault(row.message, []).append(_edited(codec.decode(row.body), edits))
    answered = {block.get("tool_use_id") for blocks in changed.values() for block in blocks}
    if missing := sorted(edits.keys() - answered):
        raise UsageError(f"the answer to call {missing[0]} never reached the model; it cannot be changed.")
    touched = edits.keys()
    return {
        id: blocks
        for id, blocks in changed.items()
        if prompt is not None or any(block.get("tool_use_id") in touched for block in blocks)
    }


def _edited(block: dict[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    use = str(block.get("tool_use_id"))
    if use not in edits:
        return block
    return {"type": "tool_result", "tool_use_id": use, **edits[use]}


def _copies(
    kept: Sequence[PastMessage], source: str, run: str, session: str, changed: Mapping[str, list[dict[str, Any]]]
) -> tuple[list[MessageCopy], list[NewBlock]]:
    """What was said by the run that is forked is said by the fork; what others said stays theirs."""
    copies: list[MessageCopy] = []
    blocks: list[NewBlock] = []
    stale = False
    for each in kept:
        mine = each.run == source
        plain = mine and each.kind in ("prompt", "answer", "results", "continuation")
        id = derived_id(run, each.kind, each.turn) if plain else derived_id(session, "copy", each.id)
        edited = each.id in changed
        stale = stale or edited
        fingerprint = EDITED if stale and each.kind == "answer" else each.fingerprint
        copies.append(MessageCopy(id, each.id, run if mine else each.run, fingerprint, int(edited)))
        for ordinal, block in enumerate(changed.get(each.id, ())):
            blocks.append(NewBlock(id, ordinal, str(block.get("type", "")), encode_block(block), None))
    return copies, blocks


async def _write(tx: Transaction, session: str, copies: Sequence[MessageCopy], blocks: Sequence[NewBlock]) -> None:
    if not copies:
        return
    await tx.run(ForksSql.copy_messages, session=session, copies=copies)
    await tx.run(ForksSql.copy_blocks, copies=copies)
    if blocks:
        await tx.run(ForksSql.add_blocks, blocks=blocks)
