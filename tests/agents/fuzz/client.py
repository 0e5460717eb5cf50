"""The client of a program: it plays the acts, decides what people are asked, and remembers what it was told."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from holdfast.agents.api.run import Run
from holdfast.agents.values import Inquiry
from holdfast.app import core_of
from holdfast.durations import microseconds
from holdfast.errors import (
    AlreadyDecided,
    BudgetUsedUp,
    IdempotencyConflict,
    NotFound,
    NothingToCompact,
    SessionBusy,
    UsageError,
)
from holdfast.models import ModelFailure
from holdfast.testing.bought import every_run
from holdfast.values import moment
from tests.agents.fuzz.cast import SMALL, Troupe
from tests.agents.fuzz.program import (
    SESSIONS,
    Act,
    Cancel,
    Compact,
    Decide,
    DecideLate,
    ForkRun,
    ForkSession,
    Interrupt,
    Pass,
    Program,
    Rest,
    Send,
    Steer,
)
from tests.agents.fuzz.stage import Stage, Stuck
from tests.support.agents import ENDED

_SLACK_US = 1_000_000  # what is due at about one time is done at one time
_MOST_STEPS = 600  # of the clock, until every run has ended
# What a client is told that asks for something which cannot be done now, or any more.
_REFUSALS = (SessionBusy, AlreadyDecided, NothingToCompact, BudgetUsedUp, IdempotencyConflict, ModelFailure)


class Accepted(NamedTuple):
    """A message that was taken: it is said to this run, or was said before."""

    run: str
    text: str


class Client:
    def __init__(self, program: Program, stage: Stage, troupes: dict[str, Troupe]) -> None:
        self.accepted: list[Accepted] = []
        self.keys: defaultdict[str, set[str]] = defaultdict(set)  # the runs that a key was said to mean
        # What a person let run, by any kind of inquiry: the number of each call that was approved, and whether anew.
        self.approved: defaultdict[str, list[int | None]] = defaultdict(list)
        # What each review showed, with what had been approved before it.
        self.reviewed: defaultdict[str, list[tuple[int, tuple[int | None, ...]]]] = defaultdict(list)
        self.changed: set[str] = set()  # calls that were approved with another number
        self.refusals: list[str] = []
        self._program, self._stage, self._troupes = program, stage, troupes
        self._app = next(iter(troupes.values())).app
        self._runs: list[Run[Any]] = []
        self._chance = Random(f"people {program.seed}")

    async def play(self) -> None:
        for act in self._program.acts:
            with self._refused(act):
                await self._act(act)
            await self._stage.replace_dead()

    @contextlib.contextmanager
    def _refused(self, act: object) -> Iterator[None]:
        try:
            yield
        except _REFUSALS as refusal:
            self.refusals.append(f"{type(act).__name__}: {type(refusal).__name__}")
        except (UsageError, NotFound) as refusal:  # of a run that has ended, a session that nobody has opened
            if isinstance(act, Send):
                raise
            self.refusals.append(f"{type(act).__name__}: {refusal}")

    async def _act(self, act: Act) -> None:
        match act:
            case Send():
                await self._send(act)
            case Steer(number, text):
                run = self._run(number)
                await run.steer(text)
                self.accepted.append(Accepted(run.id, text))
            case Interrupt(number):
                await self._run(number).interrupt()
            case Cancel(number):
                await self._run(number).cancel()
            case Decide(draw):
                await self._decide(Random(draw), willing=0.7)
            case DecideLate(draw):
                await self._stage.time.advance(microseconds("11m"))
                await self._decide(Random(draw), willing=1.0)
            case ForkRun(number, at, tools):
                self._runs.append(await self._run(number).fork(at, tools=tools))
            case ForkSession(session):
                await self._app.sessions[(await self._app.sessions.get(session)).id].fork()
            case Compact(session, rested):
                if rested:
                    await self._stage.rest()
                await self._app.sessions[(await self._app.sessions.get(session)).id].compact(SMALL)
            case Pass(by):
                await self._stage.time.advance(microseconds(by))
            case Rest():
                await self._stage.rest()

    async def _send(self, send: Send) -> None:
        agent = self._troupes[send.app].agents[send.agent]
        run = await agent.enqueue(
            send.text,
            session=send.session,
            tenant=send.tenant,
            during=send.during,
            key=send.key,
            limits=send.limits,
            mode=send.mode,
            delay=send.delay,
        )
        if send.key is not None:
            self.keys[f"{send.key} {send.text}"].add(run.id)
        if (taken := Accepted(run.id, send.text)) not in self.accepted:
            self.accepted.append(taken)
            self._runs.append(run)

    def _run(self, number: int) -> Run[Any]:
        """One of the latest runs, which may be under way."""
        if not self._runs:
            raise UsageError("nothing was sent yet")
        return self._runs[-1 - number % len(self._runs)]

    async def _decide(self, chance: Random, *, willing: float) -> None:
        for inquiry in await self._app.inquiries.list():
            if chance.random() < willing:
                with self._refused(inquiry):
                    await self._decide_one(inquiry, chance)

    async def _decide_one(self, inquiry: Inquiry, chance: Random) -> None:
        late = inquiry.expires_at is not None and inquiry.expires_at <= moment(self._stage.now)
        if inquiry.kind == "question":
            await self._app.answer(inquiry.id, f"answer to {inquiry.data.get('question')}", by="fuzz")
        elif chance.random() < 0.5:
            await self._approve(inquiry, chance)
        else:
            await self._app.deny(inquiry.id, message="no", by="fuzz")
        assert not late, f"nobody decides after its time: {inquiry}"

    async def _approve(self, inquiry: Inquiry, chance: Random) -> None:
        """As it was asked, or with another number. Who comes too late has let nothing run."""
        shown = None if inquiry.call is None else inquiry.call.input.get("n")
        other = {"n": 100 + chance.randrange(100)} if isinstance(shown, int) and chance.random() < 0.4 else None
        await self._app.approve(inquiry.id, digest=inquiry.digest, input=other, by="fuzz")
        if inquiry.call is None:
            return
        approved = self.approved[inquiry.call.id]
        if inquiry.kind == "review" and isinstance(shown, int):
            self.reviewed[inquiry.call.id].append((shown, tuple(approved)))
        approved.append(shown if other is None else other["n"])
        self.changed |= {inquiry.call.id} if other is not None else set()

    async def finish(self) -> None:
        """Let everything end; then each conversation is compacted if it can be, and goes on all the same."""
        await self._until_all_ended()
        for number in range(SESSIONS):
            await self._revisit(f"session {number}")
        await self._until_all_ended()

    async def _revisit(self, session: str) -> None:
        act = Compact(session, rested=True)
        with self._refused(act):
            await self._act(act)
        await self._send(Send("north", "clerk", f"last question of {session}", session))

    async def _until_all_ended(self) -> None:
        """People decide in the end, lanes are opened, and time passes."""
        for _ in range(_MOST_STEPS):
            await self._stage.rest()
            rows = await every_run(core_of(self._app).runtime().database)
            if all(row.state in ENDED for row in rows):
                return
            opened = await self._open_lanes()
            before = len(await self._app.inquiries.list())
            await self._decide(self._chance, willing=0.8)
            due = await self._stage.next_due()
            if due is not None:
                await self._stage.advance_to(due + _SLACK_US)
            elif not opened and before == len(await self._app.inquiries.list()) and not before:
                open_runs = [f"{row.id} {row.agent_name} {row.state}" for row in rows if row.state not in ENDED]
                raise Stuck(f"nothing will ever end these: {open_runs}\n{await self._stage.describe()}")
        raise Stuck(f"the clock was moved {_MOST_STEPS} times:\n{await self._stage.describe()}")

    async def _open_lanes(self) -> bool:
        """What a person must mend is mended."""
        waiting = [lane for lane in await self._app.lanes.list() if lane.person]
        for lane in waiting:
            await self._app.lanes.open(lane.name)
        return bool(waiting)
