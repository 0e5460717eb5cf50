"""A simulated provider: it answers from a seed, refuses, cuts and dawdles, and is the witness of what was bought.

What it answers follows from the conversation alone, so that a turn asked again is answered the same. It checks each
request as strictly as the real one, and that it may be sent at all: under a lease that lasts, after the intent was
stored, and never for a turn that has its answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Any, Final

from holdfast.models.batches import BatchItem, BatchLine, BatchStatus
from holdfast.models.facts import facts_for
from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Request, ResponseHead, Wire
from holdfast.models.script import ScriptedTurn, call, calls, last_user_text, refuse, say, truncate, turns_since_user
from holdfast.models.simulator.http import RequestRefused
from holdfast.models.simulator.strict import check_conversation
from holdfast.models.wire import count_tokens, to_events
from tests.simulation.agent_audit import AgentAudit
from tests.simulation.audit import Violation
from tests.simulation.batches import BatchBay
from tests.simulation.store import Store
from tests.simulation.workload import Host

FATES: Final = ("rate limited", "overloaded", "unreachable", "slow", "stalled", "cut", "cut at the end")
TOOLS: Final = ("quick", "slow", "flaky", "once", "poison")


class SimProvider:
    """Answers for every model of one world."""

    def __init__(self, store: Store, here: Callable[[], Host]) -> None:
        self.purchases: Counter[tuple[str, int]] = Counter()  # of each turn of each run, refusals left out
        self.usage: dict[tuple[str, int], Wire] = {}  # what the provider counted for the whole answer
        self.deltas: dict[tuple[str, int], int] = {}  # the output tokens of all its deltas, added up
        self._store = store
        self._here = here
        self._seed = store.options.seed
        self._chance = Random(f"provider of {self._seed}")
        self._ttl = store.options.settings.lease_ttl.total_seconds()
        self._odds = {fate: self._chance.uniform(0, 0.08) if self._chance.random() < 0.6 else 0.0 for fate in FATES}
        self.bay = BatchBay(store, lambda body: plan(self._seed, body), self._check)

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        key = self._arrives(request.call)
        fate = self._fate()
        self._refuse(fate)
        self.purchases[key] += 1
        body = request.body()
        self._check(request.call, body)
        events = self._events(key, to_events(plan(self._seed, body), body, call=request.call))
        if fate == "slow":
            await asyncio.sleep(self._ttl * self._chance.choice((0.5, 1.5)))
        answered(ResponseHead(request_id=f"req {request.call}"))
        last = len(events) - 1 if fate == "cut at the end" else self._chance.randrange(1, len(events))
        pause = self._chance.choice((0.0, 0.0, 0.02, 0.3))
        for place, event in enumerate(events):
            if fate in ("cut", "cut at the end") and place == last:
                raise ModelFailure("cut", "the connection was lost", bought="unknown")
            if fate == "stalled" and place == last:
                await asyncio.sleep(min(200.0, self._ttl * self._chance.choice((0.7, 3.0))))
            elif pause and event["type"] == "content_block_delta":
                await asyncio.sleep(pause * self._chance.random())
            yield event

    async def count_tokens(self, request: Request) -> int:
        return count_tokens(request.body())

    async def submit_batch(
        self, items: Sequence[BatchItem], *, call: str, total: float, answered: Callable[[ResponseHead], None]
    ) -> BatchStatus:
        late = self._submitted(call)
        return await self.bay.submit(items, answered, late)

    async def get_batch(self, id: str) -> BatchStatus:
        return await self.bay.get(id)

    async def list_batches(self, since_us: int) -> list[BatchStatus]:
        return await self.bay.listed(since_us)

    async def cancel_batch(self, id: str) -> BatchStatus:
        return await self.bay.cancel(id)

    def batch_results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        return self.bay.results(id)

    async def close(self) -> None: ...

    def _submitted(self, name: str) -> Callable[[], bool]:
        """I12: a batch is submitted after its intent was stored. Says whether its worker has been overtaken since."""
        audit = self._store.audit
        assert isinstance(audit, AgentAudit)
        id = name.partition("/")[0]
        row, job = audit.batches.get(id), audit.jobs.get(audit.seq_of.get(id, 0))
        if row is not None and row["intent_at"] is None and id not in audit.excused:
            self._store.fail(Violation("the intent comes before the submit", f"{name}: {dict(row)}"))
        fence = None if job is None else (job["epoch"], job["token"])

        def overtaken() -> bool:
            now = audit.jobs.get(audit.seq_of.get(id, 0))
            return now is None or (now["epoch"], now["token"]) != fence or now["state"] != "running"

        return overtaken

    def _arrives(self, name: str) -> tuple[str, int]:
        """I10: as `Workload._witness` judges effects, so calls are judged here."""
        run, number, fence = name.split("/")
        key, audit = (run, int(number)), self._store.audit
        assert isinstance(audit, AgentAudit)
        row, turn = audit.runs.get(run), audit.turns.get(key)
        if row is None:
            return key  # the run itself was lost
        epoch, token = (int(part) for part in fence.split("."))
        if audit.lease_until[row["job"], epoch, token] <= self._store.now() and not self._here().slow_clock:
            self._store.fail(Violation("nothing begins under a lease that is over", f"call {name}"))
        if turn is None and run not in audit.excused:
            self._store.fail(Violation("the intent comes before the call", f"call {name}"))
        if turn is not None and turn["state"] == "completed" and (epoch, token) >= (turn["epoch"], turn["token"]):
            self._store.fail(Violation("I10 (a recorded answer is not bought again)", f"call {name} of {dict(turn)}"))
        return key

    def _fate(self) -> str:
        if self._store.healed:
            return ""
        drawn = self._chance.random()
        for fate, odds in self._odds.items():
            drawn -= odds
            if drawn < 0:
                self._store.rare.hit(f"provider: {fate}")
                return fate
        return ""

    def _refuse(self, fate: str) -> None:
        if fate == "rate limited":
            after = self._chance.choice((None, 0.5, 20.0))
            raise ModelFailure("rate_limit", "slow down", status=429, retry_after=after, bought="no")
        if fate == "overloaded":
            raise ModelFailure("overloaded", "come back later", status=529, bought="no")
        if fate == "unreachable":
            raise ModelFailure("connect", "nobody there", bought="no")

    def _check(self, name: str, body: Wire) -> None:
        """I15: the provider never has a reason to refuse a request for its form."""
        try:
            check_conversation(body, facts_for(body["model"]))
        except RequestRefused as refused:
            self._store.fail(Violation("I15 (no request is refused for its form)", f"{name}: {refused}"))

    def _events(self, key: tuple[str, int], events: list[Wire]) -> list[Wire]:
        """With counts that grow: each replaces the one before, as the real provider sends them."""
        *before, delta, stop = events
        whole = delta["usage"]["output_tokens"]
        half = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": whole // 2 + 1}}
        self.usage[key] = {**before[0]["message"]["usage"], **delta["usage"]}
        self.deltas[key] = 1 + half["usage"]["output_tokens"] + whole  # type: ignore[index]
        return [*before, half, delta, stop]


def plan(seed: int, body: Wire) -> ScriptedTurn:
    """What is answered at this point of a conversation."""
    text, number = last_user_text(body["messages"]), turns_since_user(body["messages"])
    chance = Random(f"{seed} {text} {number}")
    if number >= Random(f"{seed} {text}").choice((0, 1, 1, 2, 3)):
        return _ending(chance, text)
    delegates = [tool["name"] for tool in body.get("tools") or () if tool["name"] not in TOOLS]
    parts = [_call(chance, f"{text} {number}.{place}", delegates) for place in range(chance.choice((1, 2, 2, 3)))]
    return calls(say("let me see"), *parts)


def _ending(chance: Random, text: str) -> ScriptedTurn:
    match chance.choice(("say", "say", "say", "say", "truncate", "refuse")):
        case "truncate":
            return truncate(f"as for {text}")
        case "refuse":
            return refuse("other")
        case _:
            return ScriptedTurn((say(f"done with {text}"),))


def _call(chance: Random, place: str, delegates: list[str]) -> Any:
    if delegates and chance.random() < 0.35:
        return call(chance.choice(delegates), task=place)
    name = chance.choice((*TOOLS, "nothing"))
    if name == "slow":
        return call(name, seconds=round(chance.choice((0.05, 1.0, 30.0)) * chance.random(), 6))
    return call(name, n=chance.choice((1, 1, 1, "one")) if name == "quick" else chance.randrange(100))
