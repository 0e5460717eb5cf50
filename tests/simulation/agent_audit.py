"""The observer's eyes on runs: every commit leaves conversations, calls, counts and events whole, or is a violation."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import apsw

from holdfast.agents.runs.end import rescue
from holdfast.kernel.drivers.sqlite_file import SqliteFile
from holdfast.kernel.states import TERMINAL
from tests.simulation.audit import Audit, Violation
from tests.support.exchanges import Said, broken_exchange
from tests.support.snapshots import Change, Row, changed

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "run": ("id",),
    "turn": ("run", "number"),
    "message": ("id",),
    "block": ("message", "ordinal"),
    "tool_call": ("id",),
    "run_event": ("run", "seq"),
    "batch": ("id",),
    "batch_request": ("custom_id",),
}
ENDED: Final = frozenset({"completed", "cancelled", "failed"})
PAID: Final = frozenset({"turns", "stop_reason", "progressed_at", "container", "continued"})
COUNTERS: Final = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens", "cost_nano")
SESSION_TOTALS: Final = """
select s.id, coalesce((select json_array(t.runs, t.turns, t.input_tokens, t.output_tokens, t.cost_nano)
        from session_total t where t.session = s.id), '[0,0,0,0,0]'),
    (select json_array(count(*), coalesce(sum(r.turns), 0), coalesce(sum(r.input_tokens), 0) + c.input_tokens,
        coalesce(sum(r.output_tokens), 0) + c.output_tokens, coalesce(sum(r.cost_nano), 0) + c.cost_nano)
        from run r where r.session = s.id and r.finalized_at is not null)
from session s
join (select k.id, coalesce(sum(p.input_tokens), 0) as input_tokens, coalesce(sum(p.output_tokens), 0) as output_tokens,
        coalesce(sum(p.cost_nano), 0) as cost_nano
    from session k left join compaction p on p.session = k.id group by k.id) as c on c.id = s.id
"""


class AgentAudit(Audit):
    def __init__(self, file: SqliteFile, *, ceiling_us: int, gone: Collection[int]) -> None:
        self._names = {
            table: tuple(
                name for (name,) in file.execute(f"select name from pragma_table_info('{table}') order by cid")
            )
            for table in KEYS
        }
        self._touched: list[tuple[str, int, Any, Any]] = []
        self.rescue_us = 0  # how long a run must have been held without progress to be taken back
        self.excused: set[str] = set()  # runs and batches of which a lost server knew more
        self._clear()
        super().__init__(file, ceiling_us=ceiling_us, gone=gone)
        self._fields.update(self._names)

    def _clear(self) -> None:
        self.runs: dict[str, Row] = {}
        self.turns: dict[tuple[str, int], Row] = {}
        self.calls: dict[str, Row] = {}
        self.told: defaultdict[str, int] = defaultdict(int)  # the last event of each run
        self._events: defaultdict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        self._run_of: dict[int, str] = {}
        self._turns_of: defaultdict[str, dict[int, Row]] = defaultdict(dict)
        self._calls_of: defaultdict[tuple[str, int], dict[int, Row]] = defaultdict(dict)
        self._sessions: defaultdict[str, dict[int, str]] = defaultdict(dict)  # runs by place, without those below
        self._messages: dict[str, Row] = {}
        self._branches: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._blocks: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.batches: dict[str, Row] = {}
        self.requests: dict[str, Row] = {}

    def _on_change(self, change: apsw.PreUpdate) -> None:
        if change.table_name in KEYS:
            self._touched.append((change.table_name, change.rowid, change.old, change.new))
        else:
            super()._on_change(change)

    def forget(self) -> None:
        self._touched.clear()
        super().forget()

    def reread(self, now: int) -> None:
        """I11, I14 and I22 cannot be judged for runs of which the lost server knew more."""
        self.excused |= self.runs.keys()
        self.excused |= {id for id, row in self.batches.items() if row["intent_at"] is not None}
        self._touched.clear()
        super().reread(now)
        self._clear()
        for table, names in self._names.items():
            for values in self._file.execute(f"select {', '.join(names)} from {table} order by rowid"):
                self._remember(table, None, dict(zip(names, values, strict=True)))
        for place in self._branches.values():
            place.sort(key=lambda id: self._messages[id]["ordinal"])

    def judge(self, changes: Sequence[Change], now: int, operation: Callable[..., Any], args: Sequence[Any]) -> None:
        if operation is rescue:
            self._lapsed(changes, now)
        else:
            super().judge(changes, now, operation, args)
        self._judge_runs(changes)

    @property
    def unjudged(self) -> bool:
        return bool(self._touched) or super().unjudged

    def _lapsed(self, changes: Sequence[Change], now: int) -> None:
        """Leases of runs that do not get on are ended; nothing else may change."""
        for change in changes:
            assert change.old is not None
            assert change.new is not None
            if changed(change.old, change.new) != {"lease_until"} or change.new["lease_until"] != now:
                raise Violation("a rescue only ends leases", str(change))
            if now - change.new["claimed_at"] < self.rescue_us:
                raise Violation("a rescue only takes what was held without progress", str(change))
            self._remember_job(change)
        self._stand_in_one_place()

    def _written_under_its_token(self, old: Row | None, new: Row) -> None:
        """What agents write carries no stamp; but a call is launched by who has the run."""
        if not new["kind"].startswith(("agent:", "tool:", "system:")):
            super()._written_under_its_token(old, new)
        elif old is None and new["parent"] is not None:
            parent = self.jobs[new["parent"]]
            if parent["state"] != "waiting":
                raise Violation("calls are launched when their run parks", f"{dict(new)} of {dict(parent)}")

    def _judge_runs(self, changes: Sequence[Change]) -> None:
        images: dict[tuple[str, int], tuple[Any, Any]] = {}
        for table, rowid, old, new in self._touched:
            seen = images.get((table, rowid))
            images[table, rowid] = (old if seen is None else seen[0], new)
        self._touched.clear()
        rows = [(table, self._row(table, old), self._row(table, new)) for (table, _), (old, new) in images.items()]
        for table, old, after in rows:
            if after is not None:
                self._remember(table, old, after)
        touched = {
            self._run_of[change.key] for change in changes if change.table == "job" and change.key in self._run_of
        }
        for table, old, after in rows:
            if after is not None:
                self._judge_row(table, old, after)
                if table != "batch":
                    touched.add(
                        after["id"] if table == "run" else after.get("run") or self._messages[after["message"]]["run"]
                    )
        for run in sorted(touched):
            self._judge_run(self.runs[run])

    def _remember(self, table: str, old: Row | None, row: Row) -> None:
        match table:
            case "run":
                self.runs[row["id"]] = row
                self._run_of[row["job"]] = row["id"]
                if row["parent"] is None:
                    self._sessions[row["session"]][row["ordinal"]] = row["id"]
            case "turn":
                self.turns[row["run"], row["number"]] = self._turns_of[row["run"]][row["number"]] = row
            case "tool_call":
                self.calls[row["id"]] = self._calls_of[row["run"], row["turn"]][row["ordinal"]] = row
            case "message":
                self._messages[row["id"]] = row
                if old is None:
                    self._branches[row["session"], row["branch"]].append(row["id"])
            case "block":
                self._blocks[row["message"]][row["ordinal"]] = json.loads(row["body"])
            case "batch":
                self.batches[row["id"]] = row
            case "batch_request":
                self.requests[row["custom_id"]] = row
            case "run_event":
                self.told[row["run"]] = max(self.told[row["run"]], row["seq"])
                self._events[row["run"]].append((row["type"], json.loads(row["data"])))

    def _judge_row(self, table: str, old: Row | None, row: Row) -> None:
        match table:
            case "turn" if old is not None and old["state"] == "completed" and row != old:
                raise Violation("I10 (a recorded answer does not change)", f"{dict(old)} became {dict(row)}")
            case "run" if old is not None and old["state"] in ENDED and changed(old, row) - self._still_paid(row):
                raise Violation("I2 (what has ended does not change)", f"{dict(old)} became {dict(row)}")
            case "tool_call" if old is not None and old["state"] is not None and row != old:
                raise Violation("a call is answered once", f"{dict(old)} became {dict(row)}")
            case "batch_request" if old is not None and old["state"] == "applied" and row != old:
                raise Violation("I12 (a result is applied once)", f"{dict(old)} became {dict(row)}")
            case "batch" if old is not None and old["provider_id"] not in (None, row["provider_id"]):
                raise Violation("I12 (a batch keeps its id)", f"{dict(old)} became {dict(row)}")
            case "run_event" if old is not None:
                raise Violation("I22 (an event does not change)", f"{dict(old)} became {dict(row)}")
            case "message" if old is None and row["kind"] == "prompt" and row["branch"] == "":
                self._in_accepted_order(row)
            case _:
                pass

    @staticmethod
    def _still_paid(run: Row) -> frozenset[str]:
        """What may change of a run that has ended: the answer of a batch is paid for, though nobody waits for it."""
        return PAID.union(COUNTERS) if run["mode"] == "batch" else frozenset()

    def _in_accepted_order(self, message: Row) -> None:
        """I18: a run of a session begins when all that were accepted before it have ended."""
        mine = self.runs[message["run"]]
        for ordinal, id in self._sessions[mine["session"]].items():
            if ordinal < mine["ordinal"] and self.runs[id]["state"] not in ENDED:
                raise Violation("I18 (runs of a session do not overlap)", f"{dict(mine)} began before {self.runs[id]}")

    def _judge_run(self, run: Row) -> None:
        job = self.jobs[run["job"]]
        if (run["state"] in ENDED) != (job["state"] in TERMINAL):
            raise Violation("a run and its job end together", f"{dict(run)} of {dict(job)}")
        if run["events"] != self.told[run["id"]]:
            raise Violation("I22 (events are numbered without gap)", f"{self.told[run['id']]} of {dict(run)}")
        self._counts_agree(run)
        self._conversation_is_whole(run)
        self._child_is_answered(run)

    def _counts_agree(self, run: Row) -> None:
        """I11: totals are the sums of the recorded turns, and those are numbered without gap."""
        recorded = {number: turn for number, turn in self._turns_of[run["id"]].items() if turn["state"] == "completed"}
        if sorted(recorded) != list(range(1, run["turns"] + 1)):
            raise Violation("I10 (one recorded answer for each turn)", f"{sorted(recorded)} of {dict(run)}")
        for name in COUNTERS:
            if run[name] != sum(turn[name] for turn in recorded.values()):
                raise Violation("I11 (totals are the sums of the turns)", f"{name} of {dict(run)}")

    def _conversation_is_whole(self, run: Row) -> None:
        """I13, I15, and I18 by what was said: one run after the other, and an open exchange only at the tail."""
        places = self._branches[run["session"], run["branch"]]
        rows = [self._messages[id] for id in places[-6:]]
        if [row["ordinal"] for row in rows] != list(range(len(places) - len(rows) + 1, len(places) + 1)):
            raise Violation("messages have places without gap", f"{[row['ordinal'] for row in rows]} of {dict(run)}")
        live = [row for row in rows if row["live"]]
        said = [
            Said(row["role"], row["run"], [self._blocks[row["id"]][n] for n in sorted(self._blocks[row["id"]])])
            for row in live
        ]
        if said and any(block["type"] == "tool_result" for block in said[0].blocks):
            said = said[1:]  # its question is out of sight
        ended = not said or self.runs[said[-1].run]["state"] in ENDED
        if problem := broken_exchange(said, open_tail=not ended):
            raise Violation("I13 (each use has its result in the next message, in order)", f"{problem}: {dict(run)}")
        order = [self.runs[row["run"]]["ordinal"] for row in rows]
        if order != sorted(order):
            raise Violation("I18 (runs of a session speak one after the other)", f"{order} of {dict(run)}")
        for row in rows:
            if row["kind"] == "answer":
                self._calls_are_there(row)

    def _calls_are_there(self, message: Row) -> None:
        """An answer and the calls it asks for are stored together."""
        asked = [block["id"] for _, block in sorted(self._blocks[message["id"]].items()) if block["type"] == "tool_use"]
        found = self._calls_of[message["run"], message["turn"]]
        if [found[place]["tool_use_id"] for place in sorted(found)] != asked:
            raise Violation("an answer is stored with its calls", f"{asked} of {dict(message)} has {found}")

    def _child_is_answered(self, run: Row) -> None:
        """I17: a parent has its child's result if and only if the child has ended."""
        for call in [] if run["call"] is None else [self.calls[run["call"]]]:
            parent_ended = self.runs[call["run"]]["state"] in ENDED
            if call["state"] is None and run["state"] in ENDED:
                raise Violation("I17 (the parent hears of its child's end)", f"{dict(run)} for {dict(call)}")
            if call["state"] is not None and run["state"] not in ENDED and not parent_ended:
                raise Violation("I17 (no result before its child's end)", f"{dict(run)} for {dict(call)}")

    def last_word(self) -> None:
        """At rest: everything has ended, whatever was asked was answered, and readers were told all of it once."""
        for run in self.runs.values():
            self._judge_run(run)
            if run["id"] not in self.excused:
                self._shown_once(run)
            if run["state"] == "failed" and "StoreUnavailable" in (run["error"] or ""):
                raise Violation("no run fails because the store was away", f"{dict(run)}")
            if run["parent"] is not None and self.runs[run["parent"]]["state"] in ENDED and run["state"] not in ENDED:
                raise Violation("I17 (nothing outlives its parent)", f"{dict(run)}")
        for session, said, summed in self._file.execute(SESSION_TOTALS):
            if said != summed:
                raise Violation("I11 (totals of a session are the sums of its runs)", f"{said} of {session}: {summed}")
        for call in self.calls.values():
            if call["state"] is None:
                raise Violation("every call is answered in the end", f"{dict(call)}")

    def batches_are_known(self, made: Sequence[Sequence[str]]) -> None:
        """I12: at rest the provider has no batch that the database does not know, nor what came late in its place."""
        known = {row["provider_id"] for row in self.batches.values()}
        if orphans := [ids for ids in made if known.isdisjoint(ids)]:
            raise Violation("I12 (no batch is an orphan)", f"{orphans} of {len(made)}")
        for row in self.batches.values():
            if row["state"] not in ("ended", "failed"):
                raise Violation("every batch ends", f"{dict(row)}")

    def _shown_once(self, run: Row) -> None:
        """I22, by what was said: the pieces since a turn last began are the answer, none lost and none twice."""
        said: defaultdict[tuple[int, int], str] = defaultdict(str)
        for type, data in self._events[run["id"]]:
            if type in ("turn_started", "turn_restarted"):
                said = defaultdict(str, {place: text for place, text in said.items() if place[0] != data["turn"]})
            elif type == "text_delta":
                said[data["turn"], data["index"]] += data["text"]
        for id in self._branches[run["session"], run["branch"]]:
            message = self._messages[id]
            if (message["run"], message["kind"]) != (run["id"], "answer"):
                continue
            if self.turns[run["id"], message["turn"]]["mode"] == "batch":
                continue  # nothing is shown of it before it is there
            for index, block in self._blocks[id].items():
                if block["type"] == "text" and said[message["turn"], index] != block["text"]:
                    told = said[message["turn"], index]
                    raise Violation("I22 (what is shown is what was said)", f"{told!r} for {block} of {dict(message)}")
