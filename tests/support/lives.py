"""One run with everything that belongs to it, brought into any state, and every verb under the best conditions."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.agents.batches.results import Collector, apply
from holdfast.agents.batches.steps import BatchDestination, add_requests, defer
from holdfast.agents.definition import AgentSpec, ToolSpec
from holdfast.agents.money.cost import Spent
from holdfast.agents.people.records import InquiryRow
from holdfast.agents.people.rulings import list_inquiries
from holdfast.agents.queries import list_calls
from holdfast.agents.rows import LoadedRun
from holdfast.agents.runs.create import AgentName, NamedAgent, SessionWish, Submission, create_run, run_job
from holdfast.agents.runs.decision import Decider
from holdfast.agents.runs.turn import Answer, Intent, Play, begin, commit, load
from holdfast.agents.states import RunState
from holdfast.agents.system_jobs import BATCH
from holdfast.errors import AlreadyDecided, LeaseLost, NotFound, UsageError
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete_and_settle, error_json
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease
from holdfast.kernel.waiting import overdue, wake
from holdfast.kernel.workers import list_routes
from holdfast.models.batches import BatchLine
from holdfast.models.fold import Reply
from holdfast.outcomes import Cancel, Fail
from holdfast.workers.role import SYSTEM_QUEUE
from tests.support.stores import TTL_US, Store

HOUR_US = 3_600_000_000
PROMPT = [{"type": "text", "text": "Do it."}]
INTENT = Intent("scripted:", "hash", "fingerprint")
SPENT = Spent("{}", 10, 20, 0, 0, 30)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
SPEC = AgentSpec(
    name="helper",
    model="scripted:",
    tools=(
        ToolSpec(name="look", description="Look.", schema=SCHEMA, effect="once", review=True),
        ToolSpec(name="buy", description="Buy.", schema=SCHEMA, approve=True),
    ),
)
REFUSALS = (LeaseLost, NotFound, UsageError, AlreadyDecided)


class OneRun:
    """A run, the lease that its worker remembers, and a batch with a request of its first turn."""

    store: Store
    worker: int
    id: JobId
    lease: Lease
    batch: str
    batch_lease: Lease

    def __init__(self, store: Store) -> None:
        self.store = store

    async def do(self, operation: Any, *args: Any, **more: Any) -> Any:
        return await self.store.do(operation, *args, **more)

    async def run_statement(self, statement: Any, **given: Any) -> None:
        """One statement in a transaction of its own, whatever it answers."""

        async def operation(tx: Transaction) -> None:
            await tx.run(statement, **given)

        await self.do(operation)

    async def set(self, table: str, changes: str, where: str = "true") -> None:
        await self.store.query(f"update holdfast.{table} set {changes} where {where}")

    async def state(self, table: str = "run", where: str = "true") -> str | None:
        rows = await self.store.query(f"select state from holdfast.{table} where {where}")
        return None if not rows else rows[0][0]

    async def row(self) -> tuple[Any, ...]:
        """The run as it stands, with the number of its events."""
        (row,) = await self.store.query("select * from holdfast.run")
        return row

    async def call_state(self) -> str:
        (call,) = await self.do(list_calls, self.id)
        return str(call.state)

    async def make(self) -> None:
        """Accepted, claimed, and its first turn begun."""
        self.worker = await self.store.worker()
        job, route = run_job(new_id(self.store.ports), "helper", self.store.settings, deadline_us=240 * HOUR_US)
        self.id, self._route = job.id, route.id
        session = SessionWish(new_id(self.store.ports), key="s")
        new = Submission(
            job=job,
            route=route,
            agent=NamedAgent(AgentName("helper"), SPEC),
            agent_name="helper",
            session=session,
            input='[{"type": "text", "text": "Go."}]',
        )
        await self.do(create_run, new, "")
        (self.lease,) = await self.do(claim, self.worker, [self._route], 1, TTL_US)
        assert await self.do(begin, await self.play(), PROMPT, INTENT) == "begun"

    async def run(self) -> LoadedRun:
        loaded = await self.do(load, self.lease.seq)
        found: LoadedRun = loaded.run
        return found

    async def play(self, lease: Lease | None = None) -> Play:
        run = await self.run()
        return Play(lease or self.lease, run, run.turns + 1)

    async def renewed(self) -> Lease:
        """The lease of a worker that takes the run now; the one that is remembered, when nobody can."""
        for _ in range(3):
            await self.store.advance("2h")
            await self.store.expire()
            await self.do(wake, limit=10)
            if found := await self.do(claim, self.worker, [self._route], 1, TTL_US):
                lease: Lease = found[0]
                return lease
        return self.lease

    async def calls(self) -> list[Lease]:
        """The tool calls that can be claimed, claimed."""
        routes = [route.id for route in await self.do(list_routes, since=0) if "tool:" in route.capabilities]
        found: list[Lease] = await self.do(claim, self.worker, routes, 9, TTL_US)
        return found

    def where(self) -> BatchDestination:
        return BatchDestination("lane", "scripted:", "key", new_id(self.store.ports), 0)

    async def open_batch(self, *, waits: bool) -> None:
        """A batch with the turn's request, and the lease of its job; the run waits for it, or does not."""
        run = await self.run()
        number = run.turns + 1
        await self.set("turn", "state = 'batched'", "state <> 'completed'")
        if waits:
            lease = await self.renewed()
            play = Play(lease, run, number)
            assert await self.do(defer, play, PROMPT, INTENT, "{}", self.where(), 2 * HOUR_US) == "begun"
        else:
            await self.do(add_requests, self.where(), [(run, 1, 1, "{}")])
        self.batch = (await self.store.query("select id from holdfast.batch"))[0][0]
        (self.request,) = [row[0] for row in await self.store.query("select custom_id from holdfast.batch_request")]
        (self.batch_lease,) = await self.do(claim, self.worker, [route_for(SYSTEM_QUEUE, BATCH).id], 1, TTL_US)

    async def answered(self, *uses: str, lease: Lease | None = None) -> str:
        play = await self.play(lease)
        blocks: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"use {place}", "name": name, "input": {}} for place, name in enumerate(uses)
        ] or [{"type": "text", "text": "Done."}]
        reason = "tool_use" if uses else "end_turn"
        reply = Reply(id="m", model="scripted:", blocks=blocks, stop_reason=reason)
        decided = self.deciding(play.run, SPEC, play.number, None).decide(reply)
        said: str = await self.do(commit, play, Answer("scripted:", blocks, reason, SPENT, "request"), decided)
        return said

    def deciding(self, run: LoadedRun, spec: AgentSpec, number: int, _records: object) -> Decider:
        return Decider(run, spec, number, self.store.settings, lambda tool, *_: tool.approve)

    async def bring(self, state: RunState) -> None:
        """Into a state: by real verbs, but for how far a batch is."""
        await self.make()
        match state:
            case RunState.PENDING:
                await self.open_batch(waits=False)
                await self.set("run", "state = 'pending'")
            case RunState.STREAMING:
                pass
            case RunState.BATCH_SUBMITTING | RunState.BATCH_PENDING | RunState.BATCH_PROCESSING:
                await self.open_batch(waits=True)
                await self.set("run", f"state = '{state}'")
            case RunState.PENDING_TOOLS:
                assert await self.answered("look") == "parked"
            case RunState.AWAITING_INPUT:
                assert await self.answered("buy", "look") == "parked"
            case RunState.COMPLETED:
                assert await self.answered() == "ended"
            case RunState.CANCELLED:
                await self.end(Cancel("no more"))
            case RunState.FAILED:
                await self.end(Fail("no"))
        if not hasattr(self, "batch"):
            await self.open_batch(waits=False)
        assert await self.state() == state

    async def end(self, outcome: Any) -> Any:
        """The job of the run ends, and the run with it."""
        return await self.do(complete_and_settle, [self.store.ending(self.lease, outcome)], [])

    async def end_call(self, lease: Lease, outcome: Any, error: str | None = None) -> Any:
        ending = self.store.ending(lease, outcome)
        ending = ending if error is None else ending._replace(error=error_json(error, "gone"))
        return await self.do(complete_and_settle, [ending], [] if lease.parent is None else [lease.parent])

    async def fail_waiting(self) -> None:
        """Its deadline passes while nobody runs it."""
        await self.store.advance("11d")
        await self.do(overdue, limit=10)

    async def collect(self, line: BatchLine) -> int:
        by = Collector(
            self.batch, lambda _: True, self.deciding, lambda *_: SPENT, lambda _: SPEC, prefix="", notify=False
        )
        return int(await self.do(apply, self.batch_lease, [line], by, self.where()))

    def succeeded(self) -> BatchLine:
        use = {"type": "tool_use", "id": "use 0", "name": "look", "input": {}}
        message = {"id": "m", "model": "scripted:", "content": [use], "stop_reason": "tool_use", "usage": {}}
        return BatchLine(self.request, "succeeded", message, None)

    async def inquiries(self, **chosen: Any) -> list[InquiryRow]:
        found: list[InquiryRow] = await self.do(list_inquiries, **chosen)
        return found


Apply = Callable[[OneRun], Awaitable[object]]


async def assert_moved(one: OneRun, table: str, source: str, move: Any, apply: Apply) -> None:
    """What the table of states allows happens, and everything else changes no state."""
    assert await one.state(table) == source
    if move is None:
        with contextlib.suppress(*REFUSALS):
            await apply(one)
        assert await one.state(table) == source
    else:
        await apply(one)
        assert await one.state(table) in (move.targets or (None,))
