"""Creation of agents and their versions, sessions, and runs in them with their jobs. All of it can be part of the
caller's transaction.

Every id is made before the call, so that repeating it after a lost answer makes nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from holdfast.agents.definition import AGENT_KIND, LAYER, AgentSpec, ToolSpec, digest_of
from holdfast.agents.events.log import Changes, created
from holdfast.agents.rows import AgentRow, NewRun, SessionRow
from holdfast.agents.runs import inbox
from holdfast.agents.statements import AgentsSql, RunsSql, SessionsSql
from holdfast.agents.system_jobs import BATCH
from holdfast.errors import IdempotencyConflict, NotFound, NotUnderstood, SessionBusy, StoreBusy, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue, find_key, take_key
from holdfast.kernel.ids import JobId, derived_id, is_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route
from holdfast.settings import Settings

NOTHING = "{}"
_TRIES = 20


class AgentName(NamedTuple):
    """How an agent is found: the same name may stand for different agents of different tenants or metadata."""

    name: str
    tenant: str = ""
    metadata: str = NOTHING


class NamedAgent(NamedTuple):
    """An agent of this program: its definition is written when it is not there yet."""

    name: AgentName
    spec: AgentSpec
    description: str = ""
    delegates: tuple[NamedAgent, ...] = ()


class SessionWish(NamedTuple):
    """Which session a run is for: one with this key, one with this id, or a new one under `id`."""

    id: str
    key: str | None = None
    known: bool = False  # the id names a session that must be there
    parent: str | None = None
    metadata: str = NOTHING
    during: str = "queue"


class Submission(NamedTuple):
    """One run, as it is asked for."""

    job: NewJob
    route: Route
    agent: NamedAgent | tuple[str, int]  # or the id and version of one that is stored
    agent_name: str
    session: SessionWish
    input: str  # the blocks of the prompt
    mode: str = "streaming"
    reason: str = ""  # why this mode, if an event should say so
    deadline_us: int | None = None  # from now
    key: str | None = None
    variables: str = NOTHING
    metadata: str = NOTHING
    options: str = NOTHING
    notify: bool = True
    during: str | None = None  # while another run of its session is under way; None: as the session says
    retry_of: str | None = None  # the run that this one repeats
    lent: bool = False  # in a transaction of the caller's, which may stay open for long


class CreatedRun(NamedTuple):
    run: str
    session: str
    fresh: bool  # False: the key named a run that was there already
    agent: tuple[str, int] | None = None  # the id and version that it was created with


async def put_agent(tx: Transaction, agent: NamedAgent) -> AgentRow:
    """Write the definition as a version, if it is new, and make it the one that new runs take."""
    ids = {each.name.name: (await put_agent(tx, each)).id for each in agent.delegates}
    spec = agent.spec.with_delegates(ids)
    name, tenant, metadata = agent.name
    digest = digest_of(spec)
    current = await tx.one(AgentsSql.current_agent, name=name, tenant=tenant, metadata=metadata)
    if current is not None and (current.digest, current.description) == (digest, agent.description):
        return AgentRow(*current[:-1])
    await tx.run(
        AgentsSql.add_agent,
        id=derived_id("agent", tenant, name, metadata),
        tenant=tenant,
        name=name,
        metadata=metadata,
        description=agent.description,
    )
    row = await tx.one(AgentsSql.lock_agent, name=name, tenant=tenant, metadata=metadata)
    assert row is not None
    await tx.run(AgentsSql.add_version, agent=row.id, definition=spec.text(), digest=digest)
    put = await tx.one(AgentsSql.set_version, agent=row.id, digest=digest, description=agent.description)
    assert put is not None
    return put


async def session_named(tx: Transaction, name: str, tenant: str) -> SessionRow | None:
    """The session of this id, or of this key in its tenant."""
    if is_id(name) and (found := await tx.one(SessionsSql.find_session, id=name.lower(), tenant=tenant, key=None)):
        return found
    return await tx.one(SessionsSql.find_session, id="", tenant=tenant, key=name)


async def _session_of_id(tx: Transaction, name: str, tenant: str) -> SessionRow:
    """The session that a text in the form of an id names. None is made under it: an id means its session."""
    found = await tx.one(SessionsSql.find_session, id=name.lower(), tenant=tenant, key=None)
    if found is None or found.tenant != tenant:
        raise NotFound(
            f"there is no session {name} in this database. It has the form of an id, and a new session cannot have it "
            f"for its key: leave the key out, or put something before it, such as 'user-{name}'."
        )
    return found


async def open_session(tx: Transaction, wish: SessionWish, tenant: str) -> SessionRow:
    """The session that is wished for; made, if it may be."""
    if wish.key is not None and is_id(wish.key):
        return await _session_of_id(tx, wish.key, tenant)
    if wish.parent is not None:
        above = await session_named(tx, wish.parent, tenant)
        if above is None or above.tenant != tenant:
            raise NotFound(f"there is no session {wish.parent} in this database.")
        wish = wish._replace(parent=above.id)
    if not wish.known:
        await tx.run(
            SessionsSql.add_session,
            id=wish.id,
            tenant=tenant,
            key=wish.key,
            parent=wish.parent,
            metadata=wish.metadata,
            runs=0,
            during=wish.during,
        )
    row = await tx.one(SessionsSql.find_session, id=wish.id, tenant=tenant, key=wish.key)
    if row is None or row.tenant != tenant:
        raise NotFound(f"there is no session {wish.key or wish.id} in this database.")
    return row


async def create_run(tx: Transaction, new: Submission, prefix: str) -> CreatedRun:
    """Accept a run: its job, its row, its place in the session, its first event; all or nothing."""
    job, during = new.job, new.during or "queue"
    known: SessionRow | None = None
    if new.session.key is not None or new.session.known:
        known = await open_session(tx, new.session, job.tenant)
        during = new.during or known.during
        if new.lent:
            inbox.check_lent(during)
        if during in ("steer", "coalesce") and (before := await inbox.joined_before(tx, job.id)) is not None:
            return CreatedRun(JobId(before), known.id, fresh=False)
        if during in ("steer", "coalesce") and (joined := await _join(tx, new, known, during)) is not None:
            return joined
    if new.key is not None and (other := await _owner(tx, new, new.key, known)) is not None:
        return other
    if not await enqueue(tx, [job], [new.route], notify=new.notify):
        row = await tx.one(RunsSql.find_run, id=job.id)  # an earlier call did it, and its answer was lost
        return CreatedRun(job.id, row.session if row else new.session.id, fresh=True)
    if isinstance(new.agent, NamedAgent):
        stored = await put_agent(tx, new.agent)
        agent, version = stored.id, stored.version
    else:
        agent, version = new.agent
    session, ordinal = await _take_place(tx, new.session, job.tenant)
    if during == "reject" and await tx.one(RunsSql.run_ahead, session=session, ordinal=ordinal) is not None:
        raise SessionBusy(f"session {new.session.key or session} has an active run, and this message should not wait.")
    if during == "interrupt":
        await inbox.interrupt_current(tx, session, ordinal, job.id, prefix)
    run = NewRun(
        id=job.id,
        session=session,
        branch="",
        ordinal=ordinal,
        tenant=job.tenant,
        agent=agent,
        agent_name=new.agent_name,
        version=version,
        mode=new.mode,
        parent=None,
        call=None,
        root=job.id,
        depth=0,
        input=new.input,
        variables=new.variables,
        metadata=new.metadata,
        options=new.options,
        deadline_us=new.deadline_us,
    )
    await tx.run(RunsSql.add_runs, runs=[run])
    if new.retry_of is not None:
        await tx.run(RunsSql.mark_retry, run=run.id, source=new.retry_of)
    changes = Changes(prefix)
    changes.tell(run.id, "run_created", created(run), topic="run_created")
    if new.reason:
        changes.tell(run.id, "mode_chosen", {"mode": new.mode, "reason": new.reason})
    await changes.write(tx)
    return CreatedRun(run.id, session, fresh=True, agent=(agent, version))


async def create_runs(tx: Transaction, new: Sequence[Submission], prefix: str) -> list[CreatedRun]:
    """Accept runs of one agent; all or nothing."""
    made: list[CreatedRun] = []
    stored: tuple[str, int] | None = None
    for each in new:
        made.append(await create_run(tx, each if stored is None else each._replace(agent=stored), prefix))
        stored = stored or made[-1].agent
    return made


async def _join(tx: Transaction, new: Submission, session: SessionRow, during: str) -> CreatedRun | None:
    """Give the message to a run that is there already; None: it begins one of its own."""
    target = await inbox.joinable(tx, session.id, new.agent_name, during)
    if target is None:
        return None
    if new.key is not None:
        # Asked for before the key is taken: its owner already brought this very message, as its prompt or later.
        held = await find_key(tx, new.job.tenant, new.key)
        other = await _owner(tx, new, new.key, session, target.id)
        if other is not None or held is not None:
            return other or CreatedRun(JobId(target.id), session.id, fresh=False)
    await inbox.join(tx, target, inbox.steer_id(new.job.id, new.key, target.id), new.input)
    return CreatedRun(JobId(target.id), session.id, fresh=False)


async def _take_place(tx: Transaction, wish: SessionWish, tenant: str) -> tuple[str, int]:
    """The session of a run, and its place there; in a session of its own it is the first."""
    if wish.key is None and not wish.known:
        given = {"id": wish.id, "tenant": tenant, "key": None, "parent": wish.parent, "metadata": wish.metadata}
        await tx.run(SessionsSql.add_session, **given, runs=1, during=wish.during)
        return wish.id, 1
    for _ in range(_TRIES):
        session = await open_session(tx, wish, tenant)
        place = await tx.one(SessionsSql.take_place, id=session.id)
        if place is not None:
            return session.id, place.runs
    raise StoreBusy(f"session {wish.key or wish.id} is deleted and created at the same time; try again.")


async def _owner(
    tx: Transaction, new: Submission, key: str, session: SessionRow | None, run: str | None = None
) -> CreatedRun | None:
    """The run that the key names already; None when it names `run`, which is the new one unless it is given."""
    job = run or new.job.id
    meanings = _meanings(new, session)
    owner = await take_key(tx, new.job.tenant, key, meanings[0], job)
    if owner is None or (owner.job == job and owner.digest in meanings):
        return None
    if owner.digest not in meanings:
        raise IdempotencyConflict(key, owner.job)
    row = await tx.one(RunsSql.find_run, id=owner.job)
    if row is None:
        raise UsageError(f"key {key!r} belongs to job {owner.job}, which is not a run.")
    return CreatedRun(JobId(row.id), row.session, fresh=False)


def _meanings(new: Submission, session: SessionRow | None) -> list[str]:
    """What a key stands for, first as this call spells its session, then as others may: by its key or its id."""
    asked = new.session.key or (new.session.id if new.session.known else "")
    spellings = [asked, *(() if session is None else (session.id, session.key or ""))]
    return [codec.digest(f"{new.job.kind}\x1f{each}\x1f{new.input}\x1f{new.variables}") for each in spellings]


# The job of a run.


def run_job(  # noqa: PLR0913  the options of a job
    id: JobId,
    agent: str,
    settings: Settings,
    *,
    tenant: str = "",
    queue: str = "default",
    priority: int = 100,
    requires: Sequence[str] = (),
    needs: Sequence[str] = (),
    mode: str = "streaming",
    delay_us: int | None = None,
    due_at: int | None = None,
    deadline_us: int | None = None,
) -> tuple[NewJob, Route]:
    """The job of a run. Its payload is empty: what it is about stands in the run's row.

    `needs` are the kinds of tools that its worker must have; see `needs_of`.
    """
    kind = AGENT_KIND + agent
    route = route_for(queue, kind, [*requires, *needs, *([BATCH] if mode == "batch" else [])])
    job = NewJob(
        id=id,
        kind=kind,
        queue=queue,
        route=route.id,
        tenant=tenant,
        priority=priority,
        delay_us=delay_us,
        due_at=due_at,
        timeout_us=None,
        deadline_us=deadline_us,
        deadline_at=None,
        max_attempts=settings.max_attempts,
        max_rescues=settings.max_rescue_attempts,
        parent=None,
        retry_of=None,
        payload="{}",
        metadata="{}",
        layer=LAYER,
    )
    return job, route


# Needs: what a run asks of the worker that plays it, by the version of the agent that it keeps.
#
# A worker needs the code of the tools that are called where the run is played, and of every tool whose `approve=` says
# which calls a person has to approve. The route of the run names them, so a worker that lacks one never sees the run. A
# tool that has a pool of its own, by another queue or by capabilities that its agent does not require, is called there.


MOST_NAMED = 64  # a route has no more than these, and those with approve=; nobody depends on the others' being there


def needs_of(spec: AgentSpec) -> list[str]:
    """The kinds of the tools whose code a worker must have to play runs of this version."""
    asking = {tool.kind for tool in spec.tools if tool.approve and not tool.person}
    called = {tool.kind for tool in spec.tools if not tool.person and not _has_own_pool(tool, spec)} - asking
    return sorted([*asking, *sorted(called)[: max(0, MOST_NAMED - len(asking))]])


@lru_cache(maxsize=1_000)
def _stored_needs(definition: str) -> Sequence[str]:
    return tuple(needs_of(AgentSpec.parse(definition)))


def _has_own_pool(tool: ToolSpec, spec: AgentSpec) -> bool:
    return tool.queue != spec.queue or not set(tool.requires) <= set(spec.requires)


async def routed(tx: Transaction, job: NewJob, route: Route, agent: str) -> tuple[NewJob, Route]:
    """The job of a child run and its route, with what the present version of its agent needs."""
    row = await tx.one(AgentsSql.find_agent, id=agent)
    stored = None if row is None else await tx.one(AgentsSql.find_version, agent=row.id, version=row.version)
    try:
        needs = () if stored is None else _stored_needs(stored.definition)
    except NotUnderstood:  # the worker that plays it says so
        return job, route
    route = route_for(job.queue, job.kind, [*json.loads(route.capabilities), *needs])
    return job._replace(route=route.id), route
