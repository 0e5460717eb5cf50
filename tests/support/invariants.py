"""What must hold over every history of the store, judged from its rows alone.

`check` compares the rows before and after one operation. It looks only at rows that differ, so both snapshots may
leave out what did not change, and `check_changes` takes the changed rows themselves. Either way all rows that one
operation changed must come together: a child's end and its parent's counter are judged as one.

Nothing here trusts the kernel's code, only its table of transitions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.kernel.leases import DEADLINE_ERROR
from holdfast.kernel.states import JOB, TERMINAL, State, Verb
from tests.support.places import check_places
from tests.support.promises import Broken
from tests.support.snapshots import Change, Key, Row, Snapshot, Table, changed, columns, differences


def check(
    before: Snapshot,
    after: Snapshot,
    *,
    ceiling_us: int | None = None,
    gone: Collection[int] = frozenset(),
    charged: bool = False,
) -> None:
    """Raise `Broken` unless one operation may lead from `before` to `after`.

    `ceiling_us` is the longest a lease may last by renewing it. `gone` are the workers whose presence was seen to
    be gone: their leases and duties may end before their time. `charged`: there is, or was, a queue where a lost
    lease is an attempt.
    """
    alive = {row["seq"] for row in before["worker"].values() if row["status"] in ("active", "draining")}
    given_up = {row["holder"] for row in before["duty"].values()} - alive
    known: dict[str, Any] = {"jobs": after["job"], "ceiling_us": ceiling_us, "gone": gone, "given_up": given_up}
    known["charged"] = charged
    check_changes(differences(before, after), now=after.now, **known)


def check_changes(
    changes: Iterable[Change],
    *,
    now: int,
    jobs: Table | None = None,
    ceiling_us: int | None = None,
    gone: Collection[int] = frozenset(),
    given_up: Collection[int] = frozenset(),
    charged: bool = False,
) -> None:
    """As `check`, from the changed rows. `jobs`: the rows after, where known; then steps are judged by their job.

    `given_up` are workers that the store does not count as alive: their duties may be taken before their time.
    """
    by_table: defaultdict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_table[change.table].append(change)
    what = _Operation(by_table, now, jobs or {}, ceiling_us, gone, given_up, charged)
    for change in by_table["job"]:
        _check_job(change, what)
    _attempts_are_ended_claims(what)
    _children_are_counted(what)
    _steps_are_fenced(what)
    _signals_are_taken_once(what)
    _keys_stay(what)
    _terms_rise(what)
    _lost_workers_stay_lost(what)
    _the_epoch_rises(what)


def check_untouched(before: Snapshot, after: Snapshot) -> None:
    """I5: what was refused (a stale token, a stale term) changed nothing."""
    for change in differences(before, after):
        raise Broken("I5", str(change))


def check_whole(whole: Snapshot, *, charged: bool = False) -> None:
    """What can be counted in one snapshot of all tables. `charged`: as for `check`."""
    check_places(whole)
    children = Counter(
        row["parent"] for row in whole["job"].values() if row["parent"] is not None and row["state"] not in TERMINAL
    )
    ended: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in whole["attempt"].values():
        ended[row["job"]][row["outcome"]] += 1
    (cluster,) = whole["cluster"].values()
    for seq, job in whole["job"].items():
        if job["open_children"] != children[seq]:
            raise Broken("I17", f"job {seq} says {job['open_children']}, but {children[seq]} are open")
        if job["epoch"] > cluster["epoch"]:
            raise Broken("I4", f"job {seq} has epoch {job['epoch']}, the cluster only {cluster['epoch']}")
        _check_history(job, ended[job["seq"]], charged=charged)
    taken = {step["signal"] for step in whole["step"].values()}
    for signal in whole["signal"].values():
        if signal["id"] in taken:
            raise Broken("P3", f"a signal was taken, and is there again: {dict(signal)}")
    _families_are_cancelled_whole(whole)
    owners = Counter(row["job"] for row in whole["idempotency"].values())
    if shared := [job for job, count in owners.items() if count > 1]:
        raise Broken("I19", f"several keys name the same jobs: {shared}")


def check_swept(whole: Snapshot) -> None:
    """I9: after a sweep without limit nothing is left that it should have ended."""
    for seq, job in whole["job"].items():
        late = job["deadline_at"] is not None and job["deadline_at"] <= whole.now
        if job["state"] == State.RUNNING and job["lease_until"] <= whole.now:
            raise Broken("I9", f"job {seq} still runs under a lease that ended at {job['lease_until']}")
        if job["state"] not in TERMINAL and job["state"] != State.RUNNING and late:
            raise Broken("I9", f"job {seq} is {job['state']} after its deadline {job['deadline_at']}")


# Nothing that is judged here replaces jobs: their payload is fixed, and what is pending stays due.
_PAIRS: Final = frozenset((t.source, target) for t in JOB.moves if t.verb is not Verb.REPLACE for target in t.targets)
_PRUNABLE: Final = frozenset(t.source for t in JOB.moves if t.verb is Verb.PRUNE)
_FIXED: Final = (
    *("seq", "id", "kind", "queue", "route", "tenant", "priority", "max_attempts", "max_rescues", "timeout_us"),
    *("deadline_at", "created_at", "parent", "retry_of", "payload", "metadata"),
)
_WHILE_RUNNING: Final = frozenset({"lease_until", "cancel_requested_at", "error", "progress", "open_children"})
_WHILE_PENDING: Final = frozenset({"gate", "open_children"})  # its lane holds it back, or lets it through
_COUNTER: Final = frozenset({"open_children"})
_WHILE_WAITING: Final = frozenset({"open_children", "channel", "due_at"})  # for something else, by a resolution
_BROUGHT: Final = ("holdfast:batch ", "holdfast:inquiry ")  # channels of what is brought by another job, or by a person
_VERBS: Final = {  # how an attempt ended, and the verb that ended it
    "succeeded": Verb.COMPLETE,
    "failed": Verb.FAIL,
    "retried": Verb.RETRY,
    "snoozed": Verb.SNOOZE,
    "released": Verb.RELEASE,
    "parked": Verb.PARK,
    "cancelled": Verb.CANCEL,
    "lost": Verb.EXPIRE,
}
_COSTS: Final[Mapping[str, frozenset[tuple[int, int]]]] = {  # what an ending may add to (attempts, rescues)
    "succeeded": frozenset({(1, 0)}),
    "failed": frozenset({(1, 0)}),
    "retried": frozenset({(1, 0)}),
    "snoozed": frozenset({(0, 0)}),
    "released": frozenset({(0, 0)}),
    "parked": frozenset({(0, 0)}),
    "cancelled": frozenset({(0, 0), (1, 0)}),  # a cancel that was asked for wins over whatever outcome came
    "lost": frozenset({(0, 1)}),
}
_STATUSES: Final = frozenset(
    {("starting", "active"), ("starting", "stopped"), ("starting", "lost")}
    | {("active", "draining"), ("active", "stopped"), ("active", "lost"), ("draining", "stopped"), ("draining", "lost")}
)


class _Operation(NamedTuple):
    """All that one operation changed."""

    changes: Mapping[str, list[Change]]
    now: int
    jobs: Table
    ceiling_us: int | None
    gone: Collection[int]
    given_up: Collection[int]
    charged: bool

    def of(self, table: str) -> list[Change]:
        return self.changes.get(table, [])

    def passed_on(self, before: int | None, after: int | None) -> bool:
        """Whether this commit gave the first worker up, and began the second under its id: the one is the other."""
        begun = {
            change.new["seq"]: change.new["id"] for change in self.of("worker") if change.old is None and change.new
        }
        ended = {
            change.old["seq"]: change.old["id"]
            for change in self.of("worker")
            if change.old is not None and (change.new is None or change.new["status"] == "lost")
        }
        return before in ended and after in begun and ended[before] == begun[after]


def _check_job(change: Change, what: _Operation) -> None:
    old, new = change.old, change.new
    if new is None:
        if old is not None and old["state"] not in _PRUNABLE:
            raise Broken("I2", f"job {change.key} vanished while {old['state']}")
        return
    _stays_within_limits(new)
    if old is None:
        _begins_plainly(new)
        return
    _terminal_is_final(old, new)
    _change_is_legal(old, new, what)
    _tokens_rise(old, new)
    _worker_columns_are_fenced(old, new, what)
    _lease_holds(old, new, what)
    _nothing_fires_early(old, new, what)


def _stays_within_limits(job: Row) -> None:
    if job["attempts"] > job["max_attempts"] or job["rescues"] > job["max_rescues"]:
        raise Broken("I8", f"job {job['seq']} went beyond its limits: {_counts(job)}")
    if job["attempts"] >= job["max_attempts"] and job["state"] not in TERMINAL:
        raise Broken("I9", f"job {job['seq']} is {job['state']} at its limit: {_counts(job)}")


def _begins_plainly(job: Row) -> None:
    plain = (job["epoch"], job["token"], job["attempts"], job["rescues"], job["open_children"]) == (0, 0, 0, 0, 0)
    if job["state"] not in (State.SCHEDULED, State.PENDING) or not plain:
        raise Broken("I3", f"job {job['seq']} began as {dict(job)}")


def _terminal_is_final(old: Row, new: Row) -> None:
    # The counter is about other rows, which may outlive this one.
    if old["state"] in TERMINAL and (other := changed(old, new) - _COUNTER):
        raise Broken("I2", f"job {old['seq']} was {old['state']}, then {columns(old, new, other)}")


def _change_is_legal(old: Row, new: Row, what: _Operation) -> None:
    names = changed(old, new)
    if fixed := names & frozenset(_FIXED):
        raise Broken("I3", f"job {old['seq']}: {columns(old, new, fixed)}")
    if old["state"] != new["state"]:
        if (old["state"], new["state"]) not in _PAIRS:
            raise Broken("I3", f"job {old['seq']} went from {old['state']} to {new['state']}")
        return
    if _pair(old) != _pair(new):
        return  # a claim of a running job; I6 says more
    allowed = {State.RUNNING: _WHILE_RUNNING, State.PENDING: _WHILE_PENDING}.get(State(old["state"]), _COUNTER)
    if _is_resolvable(old):
        allowed = _WHILE_WAITING
    if what.passed_on(old["worker"], new["worker"]):
        allowed |= {"worker"}
    if other := names - allowed:
        raise Broken("I3", f"job {old['seq']} stayed {old['state']}, but {columns(old, new, other)}")


def _is_resolvable(job: Row) -> bool:
    """Whether it waits for what somebody else brings, who may then settle it without a worker."""
    return job["state"] == State.WAITING and (job["channel"] or "").startswith(_BROUGHT)


def _tokens_rise(old: Row, new: Row) -> None:
    was, now = _pair(old), _pair(new)
    claimed = new["state"] == State.RUNNING and old["state"] != State.RUNNING
    if now < was or (was != now and new["token"] <= old["token"]) or (claimed and now == was):
        raise Broken("I4", f"job {old['seq']} had token {was} as {old['state']}, then {now} as {new['state']}")
    ends = (State.CANCELLED, State.FAILED, *([State.SUCCEEDED] if _is_resolvable(old) else []))
    ends_at_once = new["state"] in ends and old["state"] != State.RUNNING
    if now != was and new["state"] != State.RUNNING and not ends_at_once:
        raise Broken("I4", f"job {old['seq']} got token {now} from {old['state']} to {new['state']}")
    if ends_at_once and old["state"] not in TERMINAL and now == was:
        raise Broken("I5", f"job {old['seq']} ended as {new['state']} without a worker and kept token {was}")


def _worker_columns_are_fenced(old: Row, new: Row, what: _Operation) -> None:
    resolved = _is_resolvable(old) and new["state"] == State.SUCCEEDED
    if old["state"] != State.RUNNING and not resolved and (other := changed(old, new) & {"progress", "result"}):
        raise Broken("I5", f"job {old['seq']} was {old['state']}, then {columns(old, new, other)}")
    changed_hands = old["worker"] != new["worker"] and not what.passed_on(old["worker"], new["worker"])
    if new["state"] == State.RUNNING and _pair(old) == _pair(new) and changed_hands:
        raise Broken("I5", f"job {old['seq']} changed hands under token {_pair(old)}")


def _lease_holds(old: Row, new: Row, what: _Operation) -> None:
    seq = old["seq"]
    if new["state"] != State.RUNNING:
        return
    if what.ceiling_us is not None and new["lease_until"] > new["claimed_at"] + what.ceiling_us:
        raise Broken("I7", f"job {seq} is leased until {new['lease_until']}, beyond the ceiling")
    if _pair(old) != _pair(new) or old["state"] != State.RUNNING:
        if old["state"] != State.PENDING:
            raise Broken("I6", f"job {seq} was claimed while {old['state']} under token {_pair(old)}")
        return
    if new["claimed_at"] != old["claimed_at"] or new["lease_until"] < old["lease_until"]:
        raise Broken("I7", f"job {seq}: {columns(old, new, {'claimed_at', 'lease_until'})}")
    if new["lease_until"] > old["lease_until"] and old["lease_until"] <= what.now:
        raise Broken("I7", f"job {seq} had a lease until {old['lease_until']}, renewed at {what.now}")


def _nothing_fires_early(old: Row, new: Row, what: _Operation) -> None:
    seq, now, step = old["seq"], what.now, (old["state"], new["state"])
    due = old["due_at"] is not None and old["due_at"] <= now
    if step == (State.SCHEDULED, State.PENDING) and not due:
        raise Broken("I21", f"job {seq} was due at {old['due_at']} and woke at {now}")
    if step == (State.WAITING, State.PENDING) and not due and not _was_awaited(old, new, what):
        raise Broken("I21", f"job {seq} woke at {now}, with {new['open_children']} children, from {old['channel']}")
    overdue = old["deadline_at"] is not None and old["deadline_at"] <= now
    resolved = _is_resolvable(old) and new["error"] != DEADLINE_ERROR
    idle = old["state"] in (State.SCHEDULED, State.PENDING, State.WAITING)
    if new["state"] == State.FAILED and idle and not overdue and not resolved:
        raise Broken("I21", f"job {seq} has its deadline at {old['deadline_at']} and failed at {now}")


def _was_awaited(old: Row, new: Row, what: _Operation) -> bool:
    """Whether a parked job was woken by its last child, or by a signal on its channel."""
    if old["channel"] is None:
        return bool(new["open_children"] == 0)
    signals = what.of("signal")
    # A signal sent again, its first answer being lost, changes no signal and still wakes.
    return not signals or any(c.new is not None and c.new["channel"] == old["channel"] for c in signals)


def _attempts_are_ended_claims(what: _Operation) -> None:
    added: dict[Key, Row] = {}
    pruned = {change.key for change in what.of("job") if change.new is None}
    for change in what.of("attempt"):
        if change.old is None and change.new is not None:
            added[change.key] = change.new
        elif change.new is not None or (change.old is not None and change.old["job"] not in pruned):
            raise Broken("I8", f"a recorded attempt changed: {change}")
    for change in what.of("job"):
        old, new = change.old, change.new
        if old is None or new is None:
            continue
        attempt = added.pop((old["seq"], old["epoch"], old["token"]), None)
        _attempt_fits(old, new, attempt, what)
    if added:
        raise Broken("I8", f"attempts of nothing that ended: {sorted(map(str, added))}")


def _attempt_fits(old: Row, new: Row, attempt: Row | None, what: _Operation) -> None:
    ended = old["state"] == State.RUNNING and (new["state"] != State.RUNNING or _pair(new) != _pair(old))
    cost = (new["attempts"] - old["attempts"], new["rescues"] - old["rescues"])
    if attempt is None:
        if ended or cost != (0, 0):
            raise Broken("I8", f"job {old['seq']} ended {_pair(old)} with cost {cost} and no attempt row")
        return
    outcome = attempt["outcome"]
    costs = _COSTS[outcome]
    if outcome == "lost" and new["state"] in TERMINAL:
        costs = frozenset({(1, 0)})  # the last attempt, and no rescue
    elif outcome == "lost" and what.charged:
        costs |= {(1, 1), (1, 0)}  # an attempt, and a rescue unless it had had all of them
    if not ended or cost not in costs:
        raise Broken("I8", f"job {old['seq']}: {outcome} of {_pair(old)} cost {cost}, ended: {ended}")
    if (attempt["worker"], attempt["started_at"]) != (old["worker"], old["claimed_at"]):
        raise Broken("I8", f"job {old['seq']} was held by worker {old['worker']}, recorded: {dict(attempt)}")
    possible = JOB.move(State.RUNNING, _VERBS[outcome])
    if possible is None or new["state"] not in possible.targets:
        raise Broken("I3", f"job {old['seq']}: {outcome} led from running to {new['state']}")
    if outcome == "lost" and old["lease_until"] > what.now and old["worker"] not in what.gone:
        raise Broken("I6", f"job {old['seq']} was rescued at {what.now}, leased until {old['lease_until']}")


def _children_are_counted(what: _Operation) -> None:
    """The counter's change is that of the children; so, from nothing on, the counter is right."""
    expected: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for change in what.of("job"):
        for row, sign in ((change.old, -1), (change.new, 1)):
            if row is None:
                continue
            found[row["seq"]] += sign * row["open_children"]
            if row["parent"] is not None and row["state"] not in TERMINAL:
                expected[row["parent"]] += sign
    for seq in sorted(expected.keys() | found.keys()):
        if expected[seq] != found[seq]:
            raise Broken("I17", f"job {seq}: children changed by {expected[seq]}, the counter by {found[seq]}")


def _steps_are_fenced(what: _Operation) -> None:
    moved = {change.key: change for change in what.of("job")}
    for change in what.of("step"):
        if change.old is not None:
            if change.new is not None or not _was_pruned(moved.get(change.old["job"])):
                raise Broken("I5", f"a stored step changed: {change}")
            continue
        assert change.new is not None
        job = what.jobs.get(change.new["job"])
        if job is not None and job["state"] != State.RUNNING:
            raise Broken("I5", f"a step was stored for job {job['seq']}, which is {job['state']}")


def _signals_are_taken_once(what: _Operation) -> None:
    """A signal goes from its channel into one step, and never comes back."""
    taken = {c.new["signal"] for c in what.of("step") if c.old is None and c.new is not None} - {None}
    for change in what.of("signal"):
        if change.old is not None and (change.new is not None or change.old["id"] not in taken):
            raise Broken("P3", f"a signal changed, or vanished without being stored: {change}")


def _keys_stay(what: _Operation) -> None:
    for change in what.of("idempotency"):
        if change.old is not None and change.new is not None:
            raise Broken("I19", str(change))


def _terms_rise(what: _Operation) -> None:
    for change in what.of("duty"):
        old, new = change.old, change.new
        if new is None:
            raise Broken("I16", f"duty {change.key} vanished, and with it its term")
        if old is None:
            continue
        if new["term"] < old["term"]:
            raise Broken("I16", str(change))
        if new["term"] == old["term"]:
            revived = new["held_until"] > old["held_until"] and old["held_until"] <= what.now
            if new["holder"] not in (None, old["holder"]) or revived:
                raise Broken("I16", str(change))
            continue
        free = old["holder"] is None or old["held_until"] <= what.now or old["holder"] in {*what.gone, *what.given_up}
        if not free and new["holder"] != old["holder"]:
            raise Broken("I16", f"{change} before the term was over")


def _lost_workers_stay_lost(what: _Operation) -> None:
    for change in what.of("worker"):
        old, new = change.old, change.new
        if old is None:
            continue
        if new is None:
            if old["status"] in ("active", "draining"):
                raise Broken("P6", f"worker {change.key} vanished while {old['status']}")
            continue
        step = (old["status"], new["status"])
        own = {"id"} if old["status"] == "starting" else {"incarnation", "id"}  # a process gives its place its own
        if (step[0] != step[1] and step not in _STATUSES) or changed(old, new) & own:
            raise Broken("P6", str(change))


def _the_epoch_rises(what: _Operation) -> None:
    for change in what.of("cluster"):
        if change.old is None:
            continue
        if change.new is None or change.new["epoch"] < change.old["epoch"]:
            raise Broken("I4", str(change))


def _families_are_cancelled_whole(whole: Snapshot) -> None:
    """Under a cancelled job everything has ended or is asked to, or someone is still noted to see to it."""
    jobs, noted = whole["job"], whole["cancellation"]
    for seq, job in jobs.items():
        ancestor = None if job["state"] in TERMINAL or job["cancel_requested_at"] else jobs.get(job["parent"])
        while ancestor is not None and ancestor["seq"] not in noted:
            if ancestor["cancel_requested_at"]:
                raise Broken("I17", f"job {seq} is {job['state']}, though job {ancestor['seq']} was cancelled")
            ancestor = jobs.get(ancestor["parent"])


def _check_history(job: Row, ended: Counter[str], *, charged: bool) -> None:
    """A lost lease is a rescue; it is an attempt if the job ended with it. Where losses are charged, it may be both."""
    least = ended["succeeded"] + ended["failed"] + ended["retried"]
    last = ended["lost"] - job["rescues"]
    if not charged:
        least += last
    most = least + ended["cancelled"] + (ended["lost"] if charged else 0)
    possible = last >= 0 if charged else last == 0 or (last == 1 and job["state"] in TERMINAL)
    if not possible or not least <= job["attempts"] <= most:
        raise Broken("I8", f"job {job['seq']} has {_counts(job)}, its attempts ended as {dict(ended)}")


def _was_pruned(change: Change | None) -> bool:
    return change is not None and change.new is None


def _pair(job: Row) -> tuple[int, int]:
    return job["epoch"], job["token"]


def _counts(job: Row) -> str:
    return f"{job['attempts']}/{job['max_attempts']} attempts, {job['rescues']}/{job['max_rescues']} rescues"
