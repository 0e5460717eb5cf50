"""An observer at the store that trusts no code: the images of every row that a commit changed.

SQLite tells it each change before it happens. It keeps the rows as they stand, and judges what changed with the
invariants that the lockstep tests use, and with what attempts themselves said: everything a handler writes carries
the token it was written under.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import apsw

from holdfast.kernel import duties
from holdfast.kernel.drivers.sqlite_file import SqliteFile
from holdfast.kernel.rows import Lease, Term
from holdfast.kernel.states import TERMINAL, State
from tests.support.invariants import check_changes
from tests.support.places import PLACES, check_standing
from tests.support.snapshots import (
    PRIMARY_KEYS,
    WHOLE,
    Change,
    Key,
    Row,
    Snapshot,
    differences,
    primary_key,
    relation,
    snapshot,
    tables,
)

WATCHED: Final = frozenset(tables()) - {"route", "channel", "queue"}
# The tables that a job and its attempts are made of, and the column that names the job.
PARTS: Final = {
    **dict.fromkeys(("job", *PLACES), "seq"),
    **dict.fromkeys(("attempt", "family", "progress"), "job"),
}
UNTRACED: Final = frozenset({"hostname", "pid", "version"})  # they differ from machine to machine
UNKNOWN: Final = "0.0"  # the token of a step that was stored before a failover, if the step does not say it

LeaseKey = tuple[int, int, int]


class Violation(AssertionError):
    """Something that must never happen did; `promise` says what was promised."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Audit:
    def __init__(self, file: SqliteFile, *, ceiling_us: int, gone: Collection[int]) -> None:
        self.jobs: dict[Key, Row] = {}
        self.open: dict[int, Row] = {}  # those that have not ended
        self.duties: dict[str, Row] = {}
        self.workers: dict[int, Row] = {}
        self.seq_of: dict[str, int] = {}
        self.steps: dict[tuple[int, str], str] = {}  # the token under which each was stored
        self.lease_until: dict[LeaseKey, int] = {}
        self.known: set[LeaseKey] = set()  # leases whose claim was answered
        self.forgotten: set[LeaseKey] = set()  # leases that only a lost server knew of
        self._issued: set[tuple[str, int, int]] = set()
        self._taken: set[str] = set()
        self._unread: Counter[str] = Counter()  # signals on each channel
        self._lanes: dict[str, Row] = {}
        self._starts: defaultdict[str, list[int]] = defaultdict(list)  # in each lane
        self._file = file
        self.ceiling_us = ceiling_us
        self._gone = gone
        self.left: set[int] = set()  # workers that have said goodbye: whatever they held, they hand back
        self.clients: set[int] = set()  # of gateways: when one is given up, its leases end with it, not before
        self._raw: list[tuple[str, tuple[Any, ...] | None, tuple[Any, ...] | None]] = []
        self._columns = {name: _columns(file, relation(name)) for name in PRIMARY_KEYS}
        self._fields = {table: _columns(file, table) for table in WATCHED}
        self._moved: list[int] = []  # jobs of which some row changed in the last commit
        self._attempts: defaultdict[int, dict[Key, Row]] = defaultdict(dict)  # of each job
        self._standing: defaultdict[int, dict[tuple[str, Key], Row]] = defaultdict(dict)  # the rows of its places
        file.connection.preupdate_hook(self._on_change)

    def _on_change(self, change: apsw.PreUpdate) -> None:
        if change.table_name in WATCHED:
            self._raw.append((change.table_name, change.old, change.new))

    @property
    def unjudged(self) -> bool:
        """Whether the last commit changed more than `collect` tells."""
        return bool(self._moved)

    def forget(self) -> None:
        """What was seen since the last commit was rolled back."""
        self._raw.clear()

    def collect(self) -> list[Change]:
        """What the last commit changed, each row once, with its first and last image; jobs and attempts are whole."""
        images: dict[tuple[str, Key], tuple[Row | None, Row | None]] = {}
        touched: dict[int, None] = {}
        for table, *values in self._raw:
            old, new = (self._row(table, value) for value in values)
            if table in PARTS:
                touched.update((row[PARTS[table]], None) for row in (old, new) if row is not None)
                self._stand(table, old, new)
                continue
            key = (table, primary_key(table, new or old or {}))
            images[key] = (images[key][0] if key in images else old, new)
        self._raw.clear()
        self._moved = list(touched)
        others = [Change(*key, *pair) for key, pair in images.items() if pair[0] != pair[1]]
        return [*self._whole_changes(touched), *others]

    def _row(self, table: str, values: tuple[Any, ...] | None) -> Row | None:
        return None if values is None else dict(zip(self._fields[table], values, strict=True))

    def _stand(self, table: str, old: Row | None, new: Row | None) -> None:
        if table not in PLACES:
            return
        if old is not None:
            del self._standing[old["seq"]][table, primary_key(table, old)]
        if new is not None:
            self._standing[new["seq"]][table, primary_key(table, new)] = new

    def _whole_changes(self, touched: Collection[int]) -> list[Change]:
        """How these jobs and their attempts were, and how they are."""
        if not touched:
            return []
        now = {name: self._read(name, f"{PARTS[name]} in ({', '.join(map(str, touched))})") for name in WHOLE}
        before = {
            "job": [self.jobs[seq] for seq in touched if seq in self.jobs],
            "attempt": [row for seq in touched for row in self._attempts[seq].values()],
        }
        return list(differences(snapshot(0, before), snapshot(0, now)))

    def _read(self, name: str, where: str = "true") -> list[Row]:
        names = self._columns[name]
        rows = self._file.execute(f"select {', '.join(names)} from {relation(name)} where {where}")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def judge(self, changes: Sequence[Change], now: int, operation: Callable[..., Any], args: Sequence[Any]) -> None:
        """Take the changes over, or raise what is wrong with them."""
        for change in changes:
            if change.table == "job":
                self._remember_job(change)
            elif change.table == "attempt":
                self._remember_attempt(change)
            elif change.table == "duty" and change.new is not None:
                self.duties[str(change.key)] = change.new
            elif change.table == "worker" and change.new is not None:
                self.workers[change.new["seq"]] = change.new
            elif change.table == "lane" and change.new is not None:
                self._lanes[change.new["name"]] = change.new
            elif change.table == "signal":
                self._unread.update([change.new["channel"]] if change.new is not None else [])
                self._unread.subtract([change.old["channel"]] if change.old is not None else [])
        self._stand_in_one_place()
        holders = {change.old["holder"] for change in changes if change.table == "duty" and change.old is not None}
        alive = {seq for seq in holders & set(self.workers) if self.workers[seq]["status"] in ("active", "draining")}
        hosted = {seq for seq, row in self.workers.items() if row["host"] in self._gone}  # they went with their hub
        clients = {seq for seq in self.clients & set(self.workers) if self.workers[seq]["status"] == "lost"}
        gone = {*self._gone, *hosted, *self.left, *clients}
        known: dict[str, Any] = {"jobs": self.jobs, "gone": gone, "given_up": holders - alive}
        check_changes(changes, now=now, ceiling_us=self.ceiling_us, **known)
        for change in changes:
            if change.table == "worker" and change.new is not None:
                self._given_up_when_silent(change.old, change.new, now)
            elif change.table == "job" and change.new is not None:
                self._written_under_its_token(change.old, change.new)
                self._within_its_lane(change.old, change.new)
                if change.old is not None:
                    self._renewed_by_who_knows(change.old, change.new)
            elif change.table == "step" and change.new is not None:
                self._step_is_its_own(change.new)
        self._nobody_waits_for_what_is_there(changes)
        self._duty_is_held(changes, now, operation, args)

    def reread(self, now: int) -> None:
        """The store is another one, which lacks the last commits."""
        self._raw.clear()
        held = {_lease(row) for row in self.open.values() if row["state"] == State.RUNNING}
        whole = self.whole(now)
        self.jobs = dict(whole["job"])
        self._attempts.clear()
        for key, row in whole["attempt"].items():
            self._attempts[row["job"]][key] = row
        self._standing.clear()
        for place in PLACES:
            for key, row in whole[place].items():
                self._standing[row["seq"]][place, key] = row
        self.open = {row["seq"]: row for row in self.jobs.values() if row["state"] not in TERMINAL}
        self.seq_of = {row["id"]: row["seq"] for row in self.jobs.values()}
        self.duties = {row["name"]: row for row in whole["duty"].values()}
        self.workers = {row["seq"]: row for row in whole["worker"].values()}
        self.clients &= self.workers.keys()  # the numbers of the others are given out again
        self.steps = {(s["job"], s["name"]): token_in(s["result"]) or UNKNOWN for s in whole["step"].values()}
        self._taken = {sent for step in whole["step"].values() if (sent := _signal_in(step["result"])) is not None}
        self._unread = Counter(row["channel"] for row in whole["signal"].values())
        self._lanes = {row["name"]: row for row in whole["lane"].values()}
        self._starts.clear()
        self.forgotten |= held - {_lease(row) for row in self.open.values() if row["state"] == State.RUNNING}

    def answer(self, result: object) -> None:
        """An answer reached its process: only now does it know what it claimed."""
        self.known.update((each.seq, each.epoch, each.token) for each in _leases_in(result))

    def whole(self, now: int) -> Snapshot:
        """All rows, read from the store."""
        return snapshot(now, {name: self._read(name) for name in self._columns})

    def _remember_job(self, change: Change) -> None:
        row = change.new
        if row is None:
            self.jobs.pop(change.key, None)
            return
        seq = row["seq"]
        self.jobs[seq] = row
        if change.old is None:
            self.seq_of[row["id"]] = seq
        if row["state"] in TERMINAL:
            self.open.pop(seq, None)
        else:
            self.open[seq] = row
        if row["state"] == State.RUNNING:
            self.lease_until[_lease(row)] = row["lease_until"]
            if change.old is None or change.old["state"] != State.RUNNING:
                self._issue(row)

    def _remember_attempt(self, change: Change) -> None:
        if change.new is not None:
            self._attempts[change.new["job"]][change.key] = change.new
        elif change.old is not None:
            self._attempts[change.old["job"]].pop(change.key, None)

    def _given_up_when_silent(self, old: Row | None, new: Row, now: int) -> None:
        """A client of a gateway shows no sign of life but its heartbeats. One that begins anew takes its own place."""
        if new["seq"] not in self.clients or new["status"] != "lost" or old is None or old["status"] == "lost":
            return
        heirs = (row for row in self.workers.values() if row["id"] == new["id"] and row["seq"] > new["seq"])
        early = old["heartbeat_at"] + old["ttl_us"] > now
        if early and not any(row["status"] in ("active", "draining") for row in heirs):
            raise Violation("I7 (a client that is heard of keeps what it holds)", _image(new))

    def _stand_in_one_place(self) -> None:
        """I26, I28: seen from the tables themselves, whatever the view makes of them."""
        for seq in self._moved:
            job = self.jobs.get(seq)
            standing = [(place, row) for (place, _), row in self._standing[seq].items()]
            if job is None and not standing:
                continue
            state = check_standing(seq, job, standing)
            if job is not None and job["state"] != state:
                raise Violation("a job is shown where it stands", f"as {state}: {_image(job)}")
        self._moved.clear()

    def _issue(self, row: Row) -> None:
        """I4, also over failovers: the job is named by its id here, for numbers can be given out again."""
        lease = (row["id"], row["epoch"], row["token"])
        if lease in self._issued:
            raise Violation("I4 (no token is given out twice)", _image(row))
        self._issued.add(lease)

    def _written_under_its_token(self, old: Row | None, new: Row) -> None:
        """Results, errors, progress and children name the attempt that made them; it must be the current one."""
        under = None
        if new["result"] is not None and (old is None or new["result"] != old["result"]):
            under = token_in(new["result"])
        elif new["error"] is not None and (old is None or new["error"] != old["error"]):
            under = token_in(new["error"])
        if old is not None and new["progress"] != old["progress"]:
            under = under or token_in(new["progress"])
        if under is not None and under != f"{new['epoch']}.{new['token']}":
            raise Violation("fenced writes", f"job {new['seq']} was written under {under}: {_image(new)}")
        if old is None and new["parent"] is not None:
            parent = self.jobs[new["parent"]]
            if token_in(new["metadata"]) != f"{parent['epoch']}.{parent['token']}" or parent["state"] != "running":
                raise Violation("fenced writes", f"child {_image(new)} of {_image(parent)}")

    def _within_its_lane(self, old: Row | None, new: Row) -> None:
        """No more run than the lane allows, and no more start than its rate allows, at any commit."""
        lane = self._lanes.get(new["lane"] or "")
        if lane is None or new["state"] != State.RUNNING or (old is not None and old["state"] == State.RUNNING):
            return
        running = [r for r in self.open.values() if r["lane"] == lane["name"] and r["state"] == State.RUNNING]
        if lane["concurrency"] is not None and len(running) > lane["concurrency"]:
            raise Violation("a lane keeps its limit", f"{len(running)} run in {dict(lane)}")
        starts = self._starts[lane["name"]]
        starts.append(new["claimed_at"])
        if lane["interval_us"] is not None and len(starts) > lane["burst"]:
            apart = starts[-1] - starts[-1 - lane["burst"]]
            if apart < lane["interval_us"]:
                raise Violation(
                    "a lane keeps its rate", f"{lane['burst'] + 1} started within {apart} us in {dict(lane)}"
                )

    def _renewed_by_who_knows(self, old: Row, new: Row) -> None:
        renewed = old["state"] == new["state"] == State.RUNNING and new["lease_until"] > old["lease_until"]
        if renewed and _lease(new) not in self.known:
            raise Violation("renewed by who knows it", f"nobody learned of {_image(new)}")

    def _step_is_its_own(self, step: Row) -> None:
        job = self.jobs[step["job"]]
        current = f"{job['epoch']}.{job['token']}"
        under = token_in(step["result"])
        if under is not None and under != current:
            raise Violation("fenced writes", f"step {dict(step)} was stored for {_image(job)}")
        self.steps[step["job"], step["name"]] = current
        if (sent := _signal_in(step["result"])) is not None:
            if sent in self._taken:
                raise Violation("a signal is taken once", f"{sent} was taken again: {dict(step)}")
            self._taken.add(sent)

    def _nobody_waits_for_what_is_there(self, changes: Sequence[Change]) -> None:
        sent = {change.new["channel"] for change in changes if change.table == "signal" and change.new is not None}
        rows = [c.new for c in changes if c.table == "job" and c.new is not None]
        for row in self.open.values() if sent else rows:
            if row["state"] == State.WAITING and row["channel"] is not None and self._unread[row["channel"]] > 0:
                raise Violation("no wake-up is lost", f"a signal is there for {_image(row)}")

    def _duty_is_held(
        self, changes: Sequence[Change], now: int, operation: Callable[..., Any], args: Sequence[Any]
    ) -> None:
        """I16: a maintenance write's term is the stored one at its commit."""
        if operation in (duties.renew, duties.release) or not changes:
            return
        for term, worker in pairwise(args):
            if isinstance(term, Term):
                duty = self.duties[term.name]
                if (duty["term"], duty["holder"]) != (term.term, worker) or duty["held_until"] <= now:
                    what = f"worker {worker} acted in {term} at {now}, the store says {dict(duty)}"
                    raise Violation("I16 (each maintenance write's term is the stored one)", what)


_TOKEN = re.compile(r"under (\d+\.\d+)")
_SIGNAL = re.compile(r'"signal":"([^"]+)"')


def stamp(token: str) -> str:
    """What a handler puts into everything it writes."""
    return f"under {token}"


def token_in(text: str | None) -> str | None:
    found = None if text is None else _TOKEN.search(text)
    return None if found is None else found[1]


def traced(changes: Sequence[Change]) -> str:
    """The changes as the trace hash knows them."""
    parts: list[str] = []
    for table, key, _, new in changes:
        if table == "worker" and new is not None:
            new = {name: value for name, value in new.items() if name not in UNTRACED}  # noqa: PLW2901
        parts.append(f"{table} {key} {None if new is None else list(new.values())}")
    return "\n".join(parts)


def _leases_in(answer: object) -> Iterator[Lease]:
    if isinstance(answer, Lease):
        yield answer
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from _leases_in(each)


def _lease(row: Row) -> LeaseKey:
    return row["seq"], row["epoch"], row["token"]


def _image(row: Row) -> str:
    return json.dumps({name: value for name, value in row.items() if value is not None})


def _signal_in(text: str) -> str | None:
    found = _SIGNAL.search(text)
    return None if found is None else found[1]


def _columns(file: SqliteFile, table: str) -> tuple[str, ...]:
    return tuple(name for (name,) in file.execute(f"select name from pragma_table_info('{table}') order by cid"))
