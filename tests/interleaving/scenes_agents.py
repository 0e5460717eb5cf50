"""Turns of agents: asked, answered, called, approved, steered, interrupted and cancelled; and a zombie's turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from holdfast.agents import listings, queries
from holdfast.agents.definition import AgentSpec, ToolSpec
from holdfast.agents.events.log import write
from holdfast.agents.money.cost import Spent
from holdfast.agents.people.inquiries import Ruling, decide
from holdfast.agents.people.rulings import list_inquiries
from holdfast.agents.rows import CallRequestId, NewDelta, StreamingAttempt
from holdfast.agents.runs import inbox
from holdfast.agents.runs.create import AgentName, NamedAgent, SessionWish, Submission, create_run, run_job
from holdfast.agents.runs.decision import Decider, Decision
from holdfast.agents.runs.turn import Answer, Intent, Play, begin, commit, conclude, fail_turn, load, queue_up
from holdfast.agents.states import InquiryState
from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.claim import claim
from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import expire
from holdfast.kernel.rows import Lease
from holdfast.kernel.workers import list_routes, lose_workers
from holdfast.models.fold import Reply
from holdfast.outcomes import Done, Fail
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import SECOND, TTL_US, Outcome, Scene, skipping, verb

PROMPT = [{"type": "text", "text": "Do it."}]
ENOUGH = [{"type": "text", "text": "Enough."}]
INTENT = Intent("scripted:", "hash", "fingerprint")
SPENT = Spent("{}", 10, 20, 0, 0, 30)
SCHEMA = {"type": "object", "properties": {}}
SPEC = AgentSpec(
    name="helper",
    model="scripted:",
    tools=(
        ToolSpec(name="look", description="Look.", schema=SCHEMA),
        ToolSpec(name="buy", description="Buy.", schema=SCHEMA, approve=True),
    ),
)


def _reply(blocks: list[dict[str, Any]], reason: str) -> Reply:
    return Reply(id="m", model="scripted:", blocks=blocks, stop_reason=reason)


class Agents(Scene):
    """What scenes of agents have in common. A worker that only ends what it claims fails the runs it gets."""

    def submission(self, name: str, during: str | None = None, session: str = "session", key: str = "s") -> Submission:
        job, route = run_job(self.id(name), "helper", self.store.settings)
        return Submission(
            job=job,
            route=route,
            agent=NamedAgent(AgentName("helper"), SPEC),
            agent_name="helper",
            session=SessionWish(self.id(session), key=key),
            input=f'[{{"type": "text", "text": "{name}"}}]',
            during=during,
        )

    async def run(self, name: str = "run") -> Lease:
        """A run that was accepted and claimed."""
        new = self.submission(name)
        await self.do(create_run, new, "")
        self.route = new.route.id
        (lease,) = await self.do(claim, self.worker, [self.route], 1, TTL_US)
        assert isinstance(lease, Lease)
        return lease

    @skipping
    async def given_up(self, tx: Any) -> Any:
        """Its presence is gone: the worker is given up, and its leases end."""
        await lose_workers(tx, gone=[self.worker], reason="its presence is gone")
        return await expire(tx, gone=[self.worker], limit=10, backoff_us=SECOND, chance=random.Random(0))

    async def play(self, lease: Lease, number: int = 1) -> Play:
        loaded = await self.do(load, lease.seq)
        return Play(lease, loaded.run, number)

    def answering(self, play: Play, *uses: str, text: str = "Done.") -> Call:
        """The answer of a model: calls of these tools, or a text that ends the run."""
        blocks: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"use {place}", "name": name, "input": {}} for place, name in enumerate(uses)
        ]
        reason = "tool_use" if uses else "end_turn"
        blocks = blocks or [{"type": "text", "text": text}]
        answer = Answer("scripted:", blocks, reason, SPENT, "request")
        return call(commit, play, answer, self.decision(play, _reply(blocks, reason)))

    def speaking(self, play: Play, text: str) -> Call:
        """What the journal writes of a model that speaks."""
        said, epoch, token = play.run.id, play.lease.epoch, play.lease.token
        data = f'{{"turn": {play.number}, "index": 0, "offset": 0, "text": "{text}"}}'
        return call(
            write,
            [NewDelta(said, epoch, token, 1, "text_delta", data)],
            [CallRequestId(said, play.number, epoch, token, "request")],
            [StreamingAttempt(said, epoch, token)],
        )

    def decision(self, play: Play, reply: Reply) -> Decision:
        return Decider(play.run, SPEC, play.number, self.store.settings, lambda tool, *_: tool.approve).decide(reply)

    async def answered(self, play: Play, *uses: str) -> None:
        said = self.answering(play, *uses)
        await self.do(said.operation, *said.args)

    async def calls(self, n: int) -> list[Lease]:
        """The calls of tools that can be claimed."""
        routes = [route.id for route in await self.do(list_routes, since=0) if "tool:" in route.capabilities]
        leases: list[Lease] = await self.do(claim, self.worker, routes, n, TTL_US)
        return leases

    async def look(self, tx: Transaction) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for run in await listings.list_runs(tx, limit=100):
            about = run._asdict()
            about["job"] = run.id
            about["turns taken"] = await queries.list_turns(tx, run.id)
            about["calls"] = await queries.list_calls(tx, run.id)
            about["events told"] = [event[1:] for event in await queries.stored_events(tx, run.id)]
            about["inquiries"] = list(await list_inquiries(tx, state=None, run=run.id))
            seen[f"run {run.id}"] = about
        for session in await listings.list_sessions(tx, limit=10):
            seen[f"session {session.id}"] = session._asdict()
            messages = await listings.list_messages(tx, session.id)
            seen[f"said in {session.id}"] = [(m.ordinal, m.kind, m.run_id, m.turn, m.blocks) for m in messages]
        return seen

    def outcome(self, lease: Lease) -> Outcome:
        return Fail("nobody plays it") if lease.kind.startswith("agent:") else Done("done")

    async def ended(self) -> list[str]:
        """Every run has ended, each of its calls is answered once, and its events have no gap."""
        wrong: list[str] = []
        for run in await self.do(listings.list_runs, limit=100):
            if run.state not in ("completed", "cancelled", "failed"):
                wrong.append(f"run {run.id} is {run.state} for ever")
            numbers = [event.seq for event in await self.do(queries.stored_events, run.id)]
            if numbers != list(range(1, len(numbers) + 1)):
                wrong.append(f"the events of run {run.id} are numbered {numbers}")
            open_calls = [c.id for c in await self.do(queries.list_calls, run.id) if c.finished_at is None]
            if open_calls:
                wrong.append(f"the calls {open_calls} of run {run.id} have no end")
        return wrong + await self._unanswered()

    async def _unanswered(self) -> list[str]:
        wrong: list[str] = []
        for session in await self.do(listings.list_sessions, limit=10):
            asked: list[str] = []
            for message in await self.do(listings.list_messages, session.id):
                results = [b["tool_use_id"] for b in message.blocks if b["type"] == "tool_result"]
                if asked and sorted(results) != sorted(asked):
                    wrong.append(f"the model asked for {asked} and was answered with {results}")
                asked = [b["id"] for b in message.blocks if b["type"] == "tool_use"]
            if asked:
                wrong.append(f"the model asked for {asked} and was answered with nothing")
        return wrong

    # What may happen to any run

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.id("run"), reason="no more")

    @verb
    def steer(self) -> Call:
        return call(inbox.steer, self.id("run"), self.id("a word"), '[{"type": "text", "text": "Mind the gap."}]')

    @verb
    def interrupt(self) -> Call:
        return call(inbox.interrupt, self.id("run"), self.id("interruption"), "")

    @verb
    def message_in_line(self) -> Call:
        return call(create_run, self.submission("next"), "")

    @verb
    def message_that_steers(self) -> Call:
        return call(create_run, self.submission("joins", "steer"), "")

    @verb
    def message_that_interrupts(self) -> Call:
        return call(create_run, self.submission("interrupts", "interrupt"), "")


class Asking(Agents):
    """A model is being asked; its worker may be given up, and another may take the run."""

    name = "agent-asking"

    async def build(self) -> None:
        self.worker = await self.register()
        self.heir = await self.register("heir")
        self.lease = await self.run()
        self.turn = await self.play(self.lease)
        await self.do(begin, self.turn, PROMPT, INTENT)

    @verb
    def commit_calls(self) -> Call:
        return self.answering(self.turn, "look", "look")

    @verb
    def commit_approval(self) -> Call:
        return self.answering(self.turn, "buy")

    @verb
    def commit_end(self) -> Call:
        return self.answering(self.turn)

    @verb
    def journal(self) -> Call:
        return self.speaking(self.turn, "Well")

    @verb
    def fail_turn(self) -> Call:
        return call(fail_turn, self.turn, {"kind": "cut", "message": "cut off"}, unknown=True, counted=True)

    @verb
    def conclude(self) -> Call:
        ended = self.decision(self.turn, _reply(ENOUGH, "end_turn"))
        return call(conclude, self.turn, PROMPT, ended.conclusion)

    @verb
    def taken_over(self) -> Call:
        return call(self.rescued)

    @verb
    def begun_elsewhere(self) -> Call:
        return call(self.rescued_and_begun)

    @skipping
    async def rescued(self, tx: Any) -> Any:
        """Its worker is given up, and another claims the run, at once."""
        await self.given_up(tx)
        return await claim(tx, self.heir, [self.route], 5, TTL_US)

    @skipping
    async def rescued_and_begun(self, tx: Any) -> Any:
        """And asks the same turn again."""
        leases = await self.rescued(tx)
        for lease in leases:
            loaded = await load(tx, lease.seq)
            assert loaded is not None
            await begin(tx, Play(lease, loaded.run, loaded.run.turns + 1), [], INTENT)
        return leases


class Beginning(Agents):
    """A run was claimed and has said nothing yet; another of its session waits behind it."""

    name = "agent-beginning"

    async def build(self) -> None:
        self.worker = await self.register()
        self.heir = await self.register("heir")
        self.lease = await self.run()
        self.first = await self.play(self.lease)
        self.behind = await self.play(await self.run("behind"))

    @classmethod
    def verbs(cls) -> Iterator[str]:
        """Whoever steers begins a run of its own when the one it found ended meanwhile, also where another is next."""
        yield from (name for name in super().verbs() if name != "message_that_steers")

    @verb
    def begin(self) -> Call:
        return call(begin, self.first, PROMPT, INTENT)

    @verb
    def queue_up(self) -> Call:
        return call(queue_up, self.behind)

    @verb
    def conclude(self) -> Call:
        ended = self.decision(self.first, _reply(ENOUGH, "end_turn"))
        return call(conclude, self.first, PROMPT, ended.conclusion)

    @verb
    def taken_over(self) -> Call:
        return call(self.rescued)

    @skipping
    async def rescued(self, tx: Any) -> Any:
        await self.given_up(tx)
        return await claim(tx, self.heir, [self.route], 5, TTL_US)


class Tools(Agents):
    """A run waits for two calls of tools, and both are run."""

    name = "agent-tools"

    async def build(self) -> None:
        self.worker = await self.register()
        turn = await self.play(await self.run())
        await self.do(begin, turn, PROMPT, INTENT)
        await self.answered(turn, "look", "look")
        self.one, self.other = await self.calls(2)

    @verb
    def end_one(self) -> Call:
        return self.settling((self.one, Done("one")))

    @verb
    def end_other(self) -> Call:
        return self.settling((self.other, Done("other")))

    @verb
    def fail_other(self) -> Call:
        return self.settling((self.other, Fail("no")))

    @verb
    def cancel_family(self) -> Call:
        return call(cancel_family, limit=10)

    @verb
    def give_up_worker(self) -> Call:
        return call(self.given_up)


class Approval(Agents):
    """One call waits for a person, the other is run."""

    name = "agent-approval"

    async def build(self) -> None:
        self.worker = await self.register()
        turn = await self.play(await self.run())
        await self.do(begin, turn, PROMPT, INTENT)
        await self.answered(turn, "buy", "look")
        (self.other,) = await self.calls(2)
        (inquiry,) = await self.do(list_inquiries)
        self.inquiry: str = inquiry.id

    @verb
    def approve(self) -> Call:
        return call(decide, Ruling(self.inquiry, InquiryState.APPROVED, by="a"), "")

    @verb
    def deny(self) -> Call:
        return call(decide, Ruling(self.inquiry, InquiryState.DENIED, by="b"), "")

    @verb
    def answer(self) -> Call:
        return call(decide, Ruling(self.inquiry, InquiryState.ANSWERED, by="c", answer="bought already"), "")

    @verb
    def time_out(self) -> Call:
        return call(decide, Ruling(self.inquiry, InquiryState.EXPIRED), "")

    @verb
    def end_other(self) -> Call:
        return self.settling((self.other, Done("other")))

    @verb
    def cancel_family(self) -> Call:
        return call(cancel_family, limit=10)


class Inherited(Agents):
    """A worker that was frozen while it asked, and the one that has claimed the run since and has not begun."""

    name = "agent-inherited"

    async def build(self) -> None:
        self.worker = await self.register()
        self.stale = await self.play(await self.run())
        await self.do(begin, self.stale, PROMPT, INTENT)
        await self.store.advance("61s")
        swept = self.sweeping()
        await self.do(swept.operation, **swept.options)
        heir = await self.register("heir")
        (lease,) = await self.do(claim, heir, [self.route], 1, TTL_US)
        self.turn = await self.play(lease)

    @verb
    def begin(self) -> Call:
        return call(begin, self.turn, PROMPT, INTENT)

    @verb
    def journal_of_the_frozen(self) -> Call:
        return self.speaking(self.stale, "I was")


class Zombies(Inherited):
    """A worker that was frozen while it asked, and the one that plays the same turn now."""

    name = "agent-zombie"

    async def build(self) -> None:
        await super().build()
        await self.do(begin, self.turn, PROMPT, INTENT)

    @classmethod
    def verbs(cls) -> Iterator[str]:
        yield from (name for name in super().verbs() if name not in vars(Inherited))

    @verb
    def commit_calls(self) -> Call:
        return self.answering(self.turn, "look")

    @verb
    def stale_commit(self) -> Call:
        return self.answering(self.stale, "look", "look")

    @verb
    def stale_end(self) -> Call:
        return self.answering(self.stale, text="I was first.")

    @verb
    def journal(self) -> Call:
        return self.speaking(self.turn, "Well")

    @verb
    def stale_journal(self) -> Call:
        return self.speaking(self.stale, "I was")

    @verb
    def stale_begin(self) -> Call:
        return call(begin, self.stale, PROMPT, INTENT)

    @verb
    def stale_failure(self) -> Call:
        return call(fail_turn, self.stale, {"kind": "cut", "message": "cut off"}, unknown=True, counted=True)
