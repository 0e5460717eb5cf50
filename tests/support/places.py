"""Where the rows of a job stand: its state is the table that has its row, so there must be one, and it must fit.

`check_places` judges a snapshot of all tables, `check_standing` one job, and `misplaced` asks a live database.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from holdfast.kernel.states import TERMINAL, State
from tests.support.promises import Broken
from tests.support.snapshots import Row, Snapshot

PLACES: Final = ("ready", "later", "lease", "ended")
# What a row repeats of its job, so that nobody has to look there.
_REPEATED: Final[Mapping[str, tuple[str, ...]]] = {
    "ready": ("route", "priority", "slot", "deadline_at", "lane"),
    "later": ("route", "priority", "slot", "deadline_at", "lane"),
    "lease": ("route", "kind", "queue", "parent", "lane"),
    "ended": ("queue", "lane"),
}
_LATER: Final = {"scheduled": State.SCHEDULED, "waiting": State.WAITING, "blocked": State.PENDING}


def check_places(whole: Snapshot) -> None:
    """Raise `Broken` unless each job stands in one place, and all that repeats something agrees with it."""
    standing: defaultdict[int, list[tuple[str, Row]]] = defaultdict(list)
    for place in PLACES:
        for row in whole[place].values():
            standing[row["seq"]].append((place, row))
    asked = {row["seq"]: row for row in whole["asked"].values()}
    for seq in asked.keys() | standing.keys():
        state = check_standing(seq, asked.get(seq), standing[seq])
        seen = whole["job"].get(seq)
        if seen is None or seen["state"] != state:
            raise Broken("I26", f"job {seq} stands as {state}, but is shown as {seen and dict(seen)}")
    _attempts_stand_once(whole)
    for table in ("family", "progress"):
        if left := [row["job"] for row in whole[table].values() if row["job"] not in asked]:
            raise Broken("I26", f"{table} has rows of jobs that are not there: {left}")
    _keys_are_held_once(whole)


def check_standing(seq: int, asked: Row | None, standing: Collection[tuple[str, Row]]) -> State:
    """The state of one job, from its own rows: what it asked for, and the rows of all places that it has."""
    if asked is None or len(standing) != 1:
        places = [(place, dict(row)) for place, row in standing]
        raise Broken("I26", f"job {seq}, of which {asked and dict(asked)} was asked, stands in {places}")
    ((place, row),) = standing
    wrong = [name for name in _REPEATED[place] if row[name] != asked[name]]
    if place in ("ready", "later"):
        wrong += [] if row["cost"] == (None if asked["lane"] is None else asked["cost"]) else ["cost"]
        wrong += [] if row["tenant"] == (asked["tenant"] if asked["slot"] > 0 else None) else ["tenant"]
    if wrong:
        raise Broken("I28", f"{place} {dict(row)} differs in {', '.join(wrong)} from {dict(asked)}")
    return (
        {"ready": State.PENDING, "lease": State.RUNNING}.get(place) or _LATER.get(row["state"]) or State(row["state"])
    )


def _attempts_stand_once(whole: Snapshot) -> None:
    last = {(row["seq"], row["epoch"], row["token"]) for row in whole["ended"].values() if row["outcome"] is not None}
    if both := last & set(whole["tried"]):
        raise Broken("I27", f"attempts that ended their job stand beside it too: {sorted(map(str, both))}")
    running = {(row["seq"], row["epoch"], row["token"]) for row in whole["lease"].values()}
    if both := running & set(whole["tried"]):
        raise Broken("I27", f"attempts that are under way are recorded as ended: {sorted(map(str, both))}")


def _keys_are_held_once(whole: Snapshot) -> None:
    """Whoever holds a key is named by it. The row of a key may name one that no longer holds it."""
    held: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for job in whole["job"].values():
        if holds_key(job):
            held[job["unique_scope"], job["unique_key"]].append(job["id"])
    named = {(row["scope"], row["key"]): row["job"] for row in whole["unique_key"].values()}
    for key, holders in held.items():
        if [named.get(key)] != holders:
            raise Broken("I29", f"{key} is held by {holders}, and names {named.get(key)}")
    shared = Counter(named.values())
    if twice := [job for job, count in shared.items() if count > 1]:
        raise Broken("I29", f"several unique keys name the same jobs: {twice}")


def holds_key(job: Row) -> bool:
    """Whether this job keeps others of its unique key out: until it is claimed, until it ends, or for its window."""
    match job["unique_scope"]:
        case "pending":
            return job["token"] == 0 and job["state"] in (State.SCHEDULED, State.PENDING)
        case "live":
            return job["state"] not in TERMINAL
        case "window":
            return True
        case _:
            return False


# Rows that must not be there. Each is one statement, so that it sees one moment of a store that is in use.
_SAME: Final = "{t}.route = j.route and {t}.priority = j.priority and {t}.slot = j.slot"
_ALIKE: Final = (
    _SAME + " and coalesce({t}.deadline_at, -1) = coalesce(j.deadline_at, -1) and coalesce({t}.lane, '') = "
    "coalesce(j.lane, '') and coalesce({t}.cost, 0) = case when j.lane is null then 0 else j.cost end "
    "and coalesce({t}.tenant, '') = case when j.slot > 0 then j.tenant else '' end"
)
MISPLACED: Final = {
    "jobs that stand in no place or in several": """
        select s.seq, sum(s.asked), sum(s.stands) from (
            select seq, 1 as asked, 0 as stands from holdfast.job
            union all select seq, 0, 1 from holdfast.ready union all select seq, 0, 1 from holdfast.later
            union all select seq, 0, 1 from holdfast.lease union all select seq, 0, 1 from holdfast.ended
        ) as s group by s.seq having sum(s.asked) <> 1 or sum(s.stands) <> 1""",
    "attempts that are recorded twice": """
        select a.job, a.epoch, a.token from holdfast.attempt a join holdfast.ended e on e.seq = a.job
        where e.outcome is not null and e.epoch = a.epoch and e.token = a.token""",
    "ready rows that differ from their job": f"""
        select j.seq from holdfast.ready r join holdfast.job j on j.seq = r.seq where not ({_ALIKE.format(t="r")})""",
    "later rows that differ from their job": f"""
        select j.seq from holdfast.later r join holdfast.job j on j.seq = r.seq where not ({_ALIKE.format(t="r")})""",
    "leases that differ from their job": """
        select j.seq from holdfast.lease l join holdfast.job j on j.seq = l.seq
        where l.route <> j.route or l.kind <> j.kind or l.queue <> j.queue
            or coalesce(l.parent, 0) <> coalesce(j.parent, 0) or coalesce(l.lane, '') <> coalesce(j.lane, '')""",
    "ended rows that differ from their job": """
        select j.seq from holdfast.ended e join holdfast.job j on j.seq = e.seq
        where e.queue <> j.queue or coalesce(e.lane, '') <> coalesce(j.lane, '')""",
    "counters and progress of jobs that are not there": """
        select s.job from (select job from holdfast.family union all select job from holdfast.progress) as s
        left join holdfast.job j on j.seq = s.job where j.seq is null""",
    "unique keys that several jobs hold": """
        select j.unique_scope, j.unique_key, count(*) from holdfast.job_now j
        where j.unique_scope = 'window' or (j.unique_scope = 'live' and j.finished_at is null)
            or (j.unique_scope = 'pending' and j.token = 0 and j.state in ('scheduled', 'pending'))
        group by j.unique_scope, j.unique_key having count(*) > 1""",
}


async def assert_well_placed(query: Callable[[str], Awaitable[list[tuple[Any, ...]]]]) -> None:
    """Ask a store that may be in use for what must not be there."""
    found = {what: rows for what, text in MISPLACED.items() if (rows := await query(text))}
    assert not found, "; ".join(f"{what}: {rows[:5]}" for what, rows in found.items())
