"""The judge: what must hold when a program has come to its end, whatever happened on the way.

The provider's witness, the tools' own counts and the database are compared; none of them has seen the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from holdfast import Holdfast
from holdfast.agents import listings, queries
from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.rows import CallRow, RunRow
from holdfast.agents.runs.end import INTERRUPTED
from holdfast.agents.values import Message, Turn
from holdfast.app import core_of
from holdfast.events import (
    Compacted,
    CompactionStarted,
    Event,
    InputGiven,
    ModelChanged,
    RunEnded,
    TextDelta,
    ThinkingDelta,
    TurnFailed,
    TurnRestarted,
    TurnStarted,
)
from holdfast.kernel import codec
from holdfast.models.prices import cost
from holdfast.models.simulator import SimulatedProvider
from holdfast.testing.bought import every_run, turn_of
from tests.agents.fuzz.accounts import Accounts
from tests.agents.fuzz.cast import MUCH, Seen
from tests.agents.fuzz.client import Client
from tests.agents.fuzz.program import POOR
from tests.agents.fuzz.stage import Stage
from tests.support.agents import BY_RULE, ENDED
from tests.support.exchanges import Said, broken_exchange
from tests.support.places import assert_well_placed

_EVERY: Final = 100_000
_NANO: Final = 1_000_000_000
_ONCE: Final = ("stamp", "pay", "refund")
_ASKED: Final = ("refund",)  # never runs unless a person said so
_EXPIRED: Final = "select call, kind from holdfast.inquiry where state = 'expired' and call is not null"
_REVIEWS: Final = "select count(*) from holdfast.inquiry where kind = 'review'"
_SIGHTS: Final[dict[type[Event], str]] = {
    TurnRestarted: "a turn asked again",
    TurnFailed: "a turn that failed",
    ModelChanged: "a model given up",
    Compacted: "a history compacted",
}
_TOLD: Final = {TextDelta: "text", ThinkingDelta: "thinking"}


class Broken(AssertionError):
    """A promise was not kept."""


def need(kept: bool, promise: str, told: object) -> None:
    if not kept:
        raise Broken(f"{promise}: {told}")


class Judge:
    def __init__(self, app: Holdfast, provider: SimulatedProvider, client: Client, stage: Stage, seen: Seen) -> None:
        self._app, self._provider, self._client, self._stage, self._seen = app, provider, client, stage, seen
        self._database = core_of(app).runtime().database
        self.rows: dict[str, RunRow] = {}
        self._turns: dict[str, list[Turn]] = {}
        self._calls: dict[str, CallRow] = {}
        self._messages: dict[str, list[Message]] = {}
        self._compactions: dict[str, CompactionRow] = {}
        self._expired = 0  # inquiries about calls that nobody decided in time
        self._poor_nano = 0  # what compactions have cost the tenant that has a budget

    async def judge(self) -> None:
        self._nothing_was_refused()
        await self._load()
        for row in self.rows.values():
            await self._judge_run(row)
        for session in self._messages:
            self._judge_session(session)
        self._judge_messages()
        self._judge_calls()
        await self._judge_expired()
        self._judge_keys()
        self._judge_bills()
        self._judge_summaries()
        await self._judge_budgets()
        problems = await self._accounts().problems()
        need(not problems, "every account of what was used is the sum of the turns", problems)
        await assert_well_placed(self._stage.query)

    async def _load(self) -> None:
        database = self._database
        self.rows = {row.id: row for row in await every_run(database)}
        for row in self.rows.values():
            self._turns[row.id] = await database.transact(queries.list_turns, row.id)
            self._calls |= {call.id: call for call in await database.transact(queries.list_calls, row.id)}
        for session in await database.transact(listings.list_sessions, limit=_EVERY):
            everything: dict[str, Any] = {"branch": None, "archived": True, "limit": _EVERY}
            self._messages[session.id] = await database.transact(listings.list_messages, session.id, **everything)
            for summary in await database.transact(queries.list_compactions, session.id, limit=_EVERY):
                self._compactions[summary.id] = summary
                self._poor_nano += summary.cost_nano if session.tenant == "poor" else 0

    def _nothing_was_refused(self) -> None:
        """The provider never had a reason of its own to refuse a request."""
        done = [line for line in self._provider.lines if line["event"] == "done"]
        refused = [line for line in done if line["rejected"] and not str(line["rejected"]).startswith(BY_RULE)]
        need(not refused, "no request is refused for its form", refused[:2])

    async def _judge_run(self, row: RunRow) -> None:
        need(row.state in ENDED, "every run ends", row)
        job = await self._app.jobs.get(row.id)
        need(job.finished_at is not None, "a run and its job end together", (row, job))
        turns = self._turns[row.id]
        recorded = [turn for turn in turns if turn.state == "completed"]
        first = 1 if await self._app.runs[row.id].forked_from() is None or not recorded else recorded[0].number
        need([t.number for t in recorded] == list(range(first, row.turns + 1)), "turns have no gap", (row, turns))
        totals = (row.input_tokens, row.output_tokens, row.cost_nano)
        sums = tuple(sum(getattr(t.usage, n) for t in recorded) for n in ("input_tokens", "output_tokens", "cost_nano"))
        need(totals == sums, "totals are the sums of the turns", (row, sums))
        limits = codec.decode(row.options).get("limits") or {}
        most = limits.get("turns")
        need(most is None or row.turns <= most, "a run keeps within its turns", (row, most))
        events = await self._app.runs[row.id].events()
        numbers = [event.seq for event in events]
        need(numbers == list(range(1, row.events + 1)), "events are numbered without gap", (row, numbers))
        told = [event for event in events if not isinstance(event, CompactionStarted | Compacted)]  # may come later
        ends = [event for event in told if isinstance(event, RunEnded)]
        need(len(ends) == 1 and told[-1] is ends[0], "a run ends once, and nothing follows", (events[-4:], row))
        self._judge_deltas(row, events)

    def _judge_deltas(self, row: RunRow, events: Sequence[Event]) -> None:
        """What was shown since a turn last began is what is stored of it: nothing is lost, nothing is told twice."""
        shown: defaultdict[tuple[int, int, str], str] = defaultdict(str)
        streamed: set[int] = set()
        for event in events:
            if isinstance(event, TurnStarted | TurnRestarted):
                shown = defaultdict(str, {place: text for place, text in shown.items() if place[0] != event.turn})
                streamed.add(event.turn)
            elif isinstance(event, TextDelta | ThinkingDelta):
                shown[event.turn, event.index, _TOLD[type(event)]] += event.text
        for message in self._messages[row.session]:
            if (message.run_id, message.kind) != (row.id, "answer") or not self._was_streamed(row, message.turn):
                continue
            for index, block in enumerate(message.blocks):
                kind = block["type"]
                if kind in _TOLD.values():
                    told = shown[message.turn, index, kind]
                    need(told == block[kind], "what is shown is what was said", (told, block, row.id, message.turn))

    def _was_streamed(self, row: RunRow, turn: int) -> bool:
        """Whether the answer came by a stream: one from a batch is not shown before it is there."""
        own = {each.number for each in self._turns[row.id]}  # a fork has the others from the run it is a fork of
        return turn in own and (row.id, turn) not in {key for key, _ in self._billed_batches()}

    def _judge_session(self, session: str) -> None:
        """Every use has its result, and the runs of a session speak one after the other."""
        branches: defaultdict[str, list[Message]] = defaultdict(list)
        for message in self._messages[session]:
            branches[message.branch].append(message)
        for said in branches.values():
            live = [Said(message.role, message.run_id, message.blocks) for message in said if message.live]
            problem = broken_exchange(live, open_tail=False)
            need(not problem, "each use has its result, in the next message, in order", (problem, session, live))
            mine = [self.rows[m.run_id].ordinal for m in said if m.run_id in self.rows and m.kind != "summary"]
            own = [m for m in said if m.run_id in self.rows and self.rows[m.run_id].session == session]
            if len(own) == len(said):
                need(mine == sorted(mine), "runs of a session speak one after the other", (session, mine))

    def _judge_messages(self) -> None:
        """What was accepted is said once, if its run has said anything at all."""
        for run, text in self._client.accepted:
            said = [
                message
                for message in self._messages[self.rows[run].session]
                if message.kind in ("prompt", "steer") and message.text == text
            ]
            asked = self.rows[run].turns > 0
            need(len(said) <= 1, "a message is said once", (text, self.rows[run], said))
            need(bool(said) or not asked, "no message is lost", (text, self.rows[run]))

    def _judge_calls(self) -> None:
        """Every call is answered, what may start once did, and what needs a person had one."""
        answered = self._results()
        for call in self._calls.values():
            need(call.state is not None, "every call is answered in the end", call)
            starts = self._seen.starts[call.id]
            approved = self._client.approved.get(call.id, [])
            asked = codec.decode(call.input).get("n")
            much = isinstance(asked, int) and asked > MUCH
            first = 0 if call.name in _ASKED or (call.name == "pay" and much) else 1
            if call.name in _ONCE:
                promise = "once means at most once" if first else "nothing runs that a person has not allowed"
                need(starts <= first + len(approved), promise, (call, starts, approved))
            self._judge_inputs(call, approved, [asked] if first else [])
            told = answered.get((self.rows[call.run].session, call.tool_use_id))
            if call.state == "completed" and call.id in self._seen.tools and told is not None:
                content = str(told.get("content"))
                need(call.name in content, "what a tool returned is what the model is told", (call, told))

    def _judge_inputs(self, call: CallRow, approved: Sequence[int | None], unasked: Sequence[int]) -> None:
        """What ran is what was approved, and a review shows it. A worker may die between its claim and the start."""
        ran = self._seen.inputs.get(call.id, [])
        if call.name in _ONCE:
            allowed = {*approved, *unasked}
            need(set(ran) <= allowed, "what runs is what was approved", (call, ran, allowed))
        for shown, before in self._client.reviewed.get(call.id, []):
            may_have_run = {*ran, *before, *unasked}
            need(shown in may_have_run, "a review shows what may have run", (call, shown, may_have_run))

    async def _judge_expired(self) -> None:
        """When nobody decides in time, what is denied by then never runs, and what ran never runs again."""
        expired = await self._stage.query(_EXPIRED)
        self._expired = len(expired)
        for id, kind in expired:
            call = self._calls[str(id)]
            if call.name in _ONCE and not self._client.approved.get(call.id):
                most = 1 if kind == "review" else 0
                need(self._seen.starts[call.id] <= most, "an expired approval never runs", (call, kind))

    def _results(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By session and id: a provider may use an id again in another conversation."""
        return {
            (session, block["tool_use_id"]): block
            for session, messages in self._messages.items()
            for message in messages
            for block in message.blocks
            if block["type"] == "tool_result" and "removed to save context" not in str(block.get("content"))
        }

    def _judge_keys(self) -> None:
        for key, runs in self._client.keys.items():
            need(len(runs) == 1, "a key makes repeated calls one run", (key, runs))

    def _judge_bills(self) -> None:
        """What was bought is recorded or counted as unknown, and our bill is the witness's."""
        bought: Counter[tuple[str, int]] = Counter()
        usages: defaultdict[tuple[str, int], list[tuple[str, dict[str, Any], str]]] = defaultdict(list)
        for line in self._provider.lines:
            key = turn_of(line["call"])
            if line["event"] == "done" and line["billed"] is not None and key is not None:
                bought[key] += 1
                usages[key].append((line["model"], line["billed"], "standard"))
        for key, line in self._billed_batches():
            bought[key] += 1
            usages[key].append((line["model"], line["usage"], "batch"))
        for id, turns in self._turns.items():
            for turn in turns:
                key, recorded = (id, turn.number), int(turn.state == "completed")
                under_way = int(turn.state in ("calling", "batched"))
                least = (
                    recorded if turn.stop_reason != INTERRUPTED else 0
                )  # perhaps before the provider had heard of it
                most = recorded + turn.unknown + under_way
                need(least <= bought[key] <= most, "nothing recorded is bought twice", (bought[key], id, turn))
                if recorded and turn.stop_reason != INTERRUPTED:
                    bills = [_nano(*each) for each in usages[key]]
                    need(turn.usage.cost_nano in bills, "our bill is the provider's", (bills, id, turn))

    def _judge_summaries(self) -> None:
        """A summary is bought no oftener than it was begun, and costs no more than the provider says."""
        bills: defaultdict[str, list[int]] = defaultdict(list)
        for line in self._provider.lines:
            id, _, what = line["call"].partition("/")
            if line["event"] == "done" and line["billed"] is not None and what.startswith("summary/"):
                bills[id].append(_nano(line["model"], line["billed"], "standard"))
        for id, bill in bills.items():
            row = self._compactions[id]
            need(len(bill) <= row.attempts, "a summary is not bought twice", (bill, row))
            need(row.cost_nano <= sum(bill), "our bill is the provider's", (bill, row))
            need(row.state != "done" or row.cost_nano >= min(bill), "a summary is paid for", (bill, row))

    def _billed_batches(self) -> list[tuple[tuple[str, int], dict[str, Any]]]:
        lines = [line for line in self._provider.lines if line["event"] == "billed"]
        return [(key, line) for line in lines if (key := turn_of(line["call"])) is not None]

    async def _judge_budgets(self) -> None:
        """What was spent is within the budget, and nothing is reserved when nothing is under way."""
        (budget,) = await self._app.budgets.list(tenant="poor")
        mine = self._poor_nano + sum(row.cost_nano for row in self.rows.values() if row.tenant == "poor")
        need(budget.spent <= Decimal(POOR), "a budget is kept", budget)
        need(budget.reserved == 0, "nothing stays reserved", budget)
        need(budget.spent * _NANO == mine, "a budget counts what was spent", (budget, mine))

    async def judge_what_is_left(self) -> None:
        """Last of all: what was used stays counted when the sessions are gone."""
        problems = await self._accounts().problems_when_gone()
        need(not problems, "what was used stays counted", problems)

    def _accounts(self) -> Accounts:
        return Accounts(self._app, self.rows, self._turns, self._compactions.values())

    async def sights(self) -> Counter[str]:
        """What this program has seen of what agents must survive."""
        seen: Counter[str] = Counter()
        for row in self.rows.values():
            seen[f"run {row.outcome or row.state}"] += 1
            seen["a nested run"] += row.parent is not None
            seen["a run interrupted"] += row.limited == INTERRUPTED
            seen["a fork"] += await self._app.runs[row.id].forked_from() is not None
            for event in await self._app.runs[row.id].events():
                seen[_SIGHTS.get(type(event), "")] += 1
                if isinstance(event, InputGiven) and event.kind in ("approval", "review"):
                    seen[f"a call {event.verdict}"] += 1
        messages = [message for said in self._messages.values() for message in said]
        seen["a message steered"] += sum(message.kind == "steer" for message in messages)
        seen["an answer from a batch"] += len(self._billed_batches())
        ((reviews,),) = await self._stage.query(_REVIEWS)
        seen["a call reviewed"] += reviews
        seen["a call approved with other arguments"] += len(self._client.changed)
        seen["an inquiry expired"] += self._expired
        del seen[""]
        return +seen


def _nano(model: str, usage: dict[str, Any], tier: Any) -> int:
    return int((cost(model, usage, tier) * _NANO).to_integral_value())
