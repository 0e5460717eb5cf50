"""The doctor's judgement: what is well, what is odd, what is wrong, and what to do about it.

Gathering is apart from judging, so that each judgement can be tested without a sick database.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import VERSION, HoldfastError
from holdfast.kernel import migrate, queues, schedules, watch, workers
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Database
from holdfast.kernel.drivers.facts import (
    Blocker,
    FileFacts,
    Horizon,
    ServerFacts,
    blockers,
    facts,
    free_space,
    open_alone,
)
from holdfast.kernel.duties import DUTIES
from holdfast.kernel.flow_rows import QueueRow, ScheduleRow
from holdfast.kernel.queues import CAP
from holdfast.kernel.routes import LANE, serves
from holdfast.kernel.rows import AheadOfClock, Backlog, DutyRow, Misplaced, Route, Symptoms
from holdfast.kernel.states import WorkerState
from holdfast.settings import Settings
from holdfast.text import plural, shell_word

# The doctor's judgement of the database itself: durability, clocks, room, locks, vacuum.


Level = Literal["ok", "note", "warning", "problem"]

_FULL_QUEUE = 0.1  # of 8 GB: hints alone never gather like that
_LEAST_CONNECTIONS = 3  # of a worker: for statements, heartbeats and presence
_BESIDE_POOL = 2  # for heartbeats and presence
_DEAD_ROWS = 200_000
_LONG_TRANSACTION = 600  # seconds
_MANY_TRANSACTIONS = 1_000_000
_LEAST_DISK = 512 * 1024 * 1024
FULL_DISK = 1_000_000
_LARGE_LOG = 64 * 1024 * 1024


class Finding(NamedTuple):
    check: str
    level: Level
    sentence: str
    remedy: str = ""


def judge_blockers(found: Sequence[Blocker], settings: Settings) -> Iterator[Finding]:
    patience = settings.lock_patience
    for blocker in found:
        whose = f"{blocker.name or 'a program without a name'}, role {blocker.role}, {blocker.state}"
        age = "" if blocker.open_for is None else f" in a transaction that has been open for {blocker.open_for} s"
        long = max(blocker.longest, blocker.open_for or 0) >= patience
        waiting = plural(blocker.waiting, "session of Holdfast waits", "sessions of Holdfast wait")
        yield Finding(
            "locks",
            "problem" if long else "warning",
            f"{waiting} for a lock of session {blocker.pid} ({whose}){age}; "
            f"a session gives up after {patience:.0f} s and tries again.",
            f"End that transaction, or its session: select pg_terminate_backend({blocker.pid}).",
        )


def judge_server(found: ServerFacts, settings: Settings, live: int) -> Iterator[Finding]:
    yield Finding("server", "ok", f"PostgreSQL {found.version}.")
    yield from _durability(found, settings)
    yield _clock(found)
    yield from _hints(found)
    yield _connections(found, settings, live)
    yield from judge_disk(found.free)
    yield from _vacuum(found)


def _durability(found: ServerFacts, settings: Settings) -> Iterator[Finding]:
    off = [name for name, on in (("fsync", found.fsync), ("full_page_writes", found.full_page_writes)) if not on]
    for name in off:
        yield Finding(
            "durability",
            "problem",
            f"{name} is off: a crash of the server's host can lose or damage accepted work.",
            f"Set {name} = on in postgresql.conf and reload.",
        )
    if found.synchronous_commit == "off" and settings.profile == "full":
        yield Finding(
            "durability",
            "problem",
            "synchronous_commit is off: a crash of the server can lose work that was accepted just before.",
            "Set synchronous_commit = on, or accept that risk with HOLDFAST_PROFILE=fast.",
        )
    elif not off:
        yield Finding("durability", "ok", f"fsync is on, synchronous_commit is {found.synchronous_commit}.")


def _clock(found: ServerFacts) -> Finding:
    seconds = abs(found.ahead_us) / 1e6
    side = "ahead of" if found.ahead_us > 0 else "behind"
    if abs(found.ahead_us) <= found.doubt_us + 1_000_000:
        return Finding("clock", "ok", f"the database's clock agrees with this machine's within {seconds:.1f} s.")
    level: Level = "note" if seconds < 10 else "warning"
    return Finding(
        "clock",
        level,
        f"the database's clock is {seconds:.1f} s {side} this machine's; times given as `at=` are off by as much.",
        "Synchronise both with NTP. Leases are not affected: the database's clock decides them.",
    )


def _hints(found: ServerFacts) -> Iterator[Finding]:
    if found.pooled:
        yield Finding(
            "wake-ups",
            "note",
            "a transaction pooler is between: no wake-ups and no presence; polling finds work, leases find the dead.",
            "Give workers a URL that bypasses the pooler to have both.",
        )
    elif found.hint_seconds is None:
        yield Finding(
            "wake-ups",
            "warning",
            "a NOTIFY did not arrive within 5 s; workers find work by polling.",
            "Look for a proxy that drops notifications, or for a listener that blocks the server's queue "
            "(pg_notification_queue_usage()).",
        )
    else:
        yield Finding("wake-ups", "ok", f"NOTIFY arrives after {found.hint_seconds * 1_000:.0f} ms.")
    if found.hint_queue >= _FULL_QUEUE:
        yield Finding(
            "notifications",
            "warning",
            f"the server's queue of notifications is {found.hint_queue:.0%} full; once it is full, wake-ups are lost, "
            f"and a transaction of a caller's that enqueues with `tx` cannot commit.",
            "A session that listens stays in a transaction and so does not take its notifications: find it in "
            "pg_stat_activity (state idle in transaction) and end it.",
        )


def _connections(found: ServerFacts, settings: Settings, live: int) -> Finding:
    room = found.max_connections - found.reserved
    free = room - found.used
    each = _BESIDE_POOL + settings.connections
    said = f"{found.used} of {room} connections are used; {plural(live, 'live worker')} may use {live * each}"
    if free < _LEAST_CONNECTIONS:
        return Finding(
            "connections",
            "problem",
            f"{said}; the {free} that are left are too few for one more worker.",
            "Raise max_connections, or end what holds them (pg_stat_activity).",
        )
    if live * each > room:
        return Finding(
            "connections",
            "warning",
            f"{said} under load, which is more than the server has.",
            "Raise max_connections, lower HOLDFAST_CONNECTIONS, or run fewer processes with more slots each.",
        )
    return Finding("connections", "ok", f"{said} under load.")


def _vacuum(found: ServerFacts) -> Iterator[Finding]:
    if not found.autovacuum:
        yield Finding(
            "vacuum",
            "problem",
            "autovacuum is off: tables grow with every change, and claims get slower.",
            "Set autovacuum = on in postgresql.conf and reload.",
        )
    if not found.may_vacuum:
        yield Finding(
            "vacuum",
            "note",
            f"the tables belong to {found.owner}; as {found.role}, VACUUM skips them without an error. Workers of this "
            f"role leave all dead rows to autovacuum, which comes once a minute at best.",
            f"Run workers as {found.owner}, or grant {found.owner} to {found.role}; from PostgreSQL 17 on, MAINTAIN on "
            f"the tables is enough.",
        )
    held = _held(found.horizon)
    if found.dead > max(_DEAD_ROWS, found.live):
        yield Finding(
            "vacuum",
            "warning",
            f"the table {found.table} has {found.dead:,} dead rows beside {found.live:,} live ones."
            + (f" {held[0].upper()}{held[1:]}, and prevents their removal." if held else ""),
            f"End what holds them (pg_stat_activity, pg_replication_slots, pg_prepared_xacts), then VACUUM the table "
            f"{found.table}.",
        )
    elif held:
        yield Finding(
            "vacuum",
            "warning",
            f"{held}: nothing that died since can be vacuumed.",
            "End it: pg_terminate_backend ends a session, pg_drop_replication_slot removes a slot that nobody uses, "
            "ROLLBACK PREPARED undoes a prepared transaction.",
        )
    elif found.autovacuum:
        yield Finding(
            "vacuum", "ok", f"{found.dead:,} dead rows beside {found.live:,} live ones in the table {found.table}."
        )


def _held(horizon: Horizon | None) -> str:
    """Who needs what died long ago; empty: nobody."""
    if horizon is None:
        return ""
    if horizon.seconds is None:
        finding = f"{horizon.holder} has a snapshot from {horizon.transactions:,} transactions ago"
        return finding if horizon.transactions > _MANY_TRANSACTIONS else ""
    finding = f"{horizon.holder} has had a transaction open for {horizon.seconds} s"
    return finding if horizon.seconds > _LONG_TRANSACTION else ""


def judge_file(found: FileFacts, settings: Settings) -> Iterator[Finding]:
    where = f"on {found.filesystem}, {found.size / 1e6:,.1f} MB" if found.filesystem else f"{found.size / 1e6:,.1f} MB"
    yield Finding("server", "ok", f"SQLite {found.version}; the file is {where}.")
    full = found.synchronous >= 2
    if found.journal_mode != "wal":
        yield Finding(
            "durability",
            "problem",
            f"the journal mode is {found.journal_mode}, not wal: readers and writers block each other.",
            "End the program that changed it, then run any holdfast command: it sets wal again.",
        )
    elif full or settings.profile == "fast":
        yield Finding("durability", "ok", f"journal_mode is wal, synchronous is {'full' if full else 'normal'}.")
    if found.wal > _LARGE_LOG:
        yield Finding(
            "log",
            "warning",
            f"the write-ahead log is {found.wal / 1e6:,.0f} MB: a process has been reading for a long time, or "
            "no worker truncates it.",
            "End the process that reads the file (a backup, a shell, a stopped process); then a worker truncates it.",
        )
    yield from judge_disk(found.free)


def judge_disk(free: int | None) -> Iterator[Finding]:
    if free is None or free >= _LEAST_DISK:
        return
    full = free < FULL_DISK
    yield Finding(
        "disk",
        "problem" if full else "warning",
        f"{'' if full else 'only '}{free // 1_000_000:,} MB are free on the disk of the database"
        f"{': nothing more can be accepted.' if full else '.'}",
        "Free some space; `holdfast prune` makes room inside the file.",
    )


GRACE_US = 60_000_000  # what a sweep should have done within a second is late after this
_SETTLED_US = 30_000_000  # a worker that came later may still be taking its presence


class Work(NamedTuple):
    """What is in the store, as far as it can be stuck."""

    symptoms: Symptoms
    backlogs: Sequence[Backlog]
    workers: Sequence[WorkerRow]
    duties: Sequence[DutyRow]
    queues: Sequence[QueueRow]
    blocked: Mapping[str, int] = {}
    stranded: Sequence[str] = ()
    missing: Sequence[str] = ()
    schedules: Sequence[ScheduleRow] = ()
    ahead: AheadOfClock = AheadOfClock(0, 0, 0)
    oldest_code: int = 0
    misplaced: Sequence[Misplaced] = ()
    shows_presence: bool = True  # this store can; in memory and behind a pooler it cannot


async def examine(database: Database, settings: Settings, ports: Ports) -> list[Finding]:
    """Everything that can be asked of this database, judged. It is opened here, and left open."""
    findings = [Finding("versions", "ok", f"holdfast {VERSION} on Python {platform.python_version()}.")]
    try:
        findings += await _opened(database)
        stored = await database.stored_schema()
        have = stored.version if stored else 0
        code = migrate.code_version(database.dialect)
        findings.append(Finding("schema", "ok", f"the tables are of schema {have}, this code is of schema {code}."))
        findings += judge_blockers(await blockers(database), settings)  # before what they may block
        work = Work(
            await database.transact(watch.symptoms, grace_us=GRACE_US),
            await database.transact(watch.backlogs),
            await database.transact(
                workers.list_workers, all=False, limit=10_000, absent=await workers.absent_workers(database)
            ),
            await database.transact(workers.list_duties),
            await database.transact(queues.list_queues),
            await database.transact(queues.count_blocked),
            await database.transact(watch.stranded_lanes),
            await database.transact(watch.missing_lanes),
            await database.transact(schedules.list_schedules),
            await database.transact(watch.ahead_of_clock, lease_ttl_us=microseconds(settings.lease_ttl)),
            stored.oldest_code if stored else 0,
            await database.transact(watch.misplaced),
        )
        found = await facts(database, ports)
    except HoldfastError as problem:  # its message says what to do
        return [*findings, *judge_disk(free_space(database)), Finding("database", "problem", str(problem))]
    except OSError as problem:
        said = f"{database.dialect} cannot be used: {problem}."
        return [*findings, *judge_disk(free_space(database)), Finding("database", "problem", said)]
    work = work._replace(shows_presence=found is not None and not (isinstance(found, ServerFacts) and found.pooled))
    if isinstance(found, ServerFacts):
        findings += judge_server(found, settings, sum(row.status == WorkerState.ACTIVE for row in work.workers))
    elif isinstance(found, FileFacts):
        findings += judge_file(found, settings)
    return [*findings, *judge_work(work)]


async def _opened(database: Database) -> list[Finding]:
    """Open it as everybody does, or, where the disk has no room for that, alone."""
    try:
        await database.open()
    except (HoldfastError, OSError):
        free = free_space(database)
        if free is None or free >= FULL_DISK or not await open_alone(database):
            raise
        return [
            Finding(
                "database",
                "problem",
                "no process can open the database: the disk is full. Doctor uses it exclusively now.",
                "Free some space, then start the workers again.",
            )
        ]
    return []


def judge_work(work: Work) -> Iterator[Finding]:
    now = work.symptoms.now
    alive = [row for row in work.workers if not row.silent]
    taking = [row for row in alive if row.status == WorkerState.ACTIVE]
    if silent := [row.id for row in work.workers if row not in alive]:
        yield Finding(
            "workers",
            "warning",
            f"{plural(len(silent), 'worker is', 'workers are')} dead or silent for too long, "
            f"and not declared lost yet: {_some(silent)}.",
            "Start a worker: it does that within seconds.",
        )
    else:
        slots = sum(row.slots for row in taking)
        active = plural(len(taking), "worker is", "workers are") + " active"
        yield Finding("workers", "ok", f"{active}, with {plural(slots, 'slot')}.")
    yield from _unsure(work, alive)
    yield from _too_old(alive, work.oldest_code)
    yield from _hanging(alive)
    yield from _held_loops(work.workers)
    yield from _ahead(work.ahead, there_are_workers=bool(taking))
    yield from _paused(work.queues, work.blocked)
    yield from _unfired(work.schedules)
    yield from _misplaced(work.misplaced)
    stuck = [
        *_unserved(work, taking),
        *_late(work.symptoms, there_are_workers=bool(taking)),
        *_in_lanes(work, there_are_workers=bool(taking)),
    ]
    if taking and not stuck:
        stuck = list(_unheld(work.duties, taking, now))
    yield from stuck or [Finding("work", "ok", "nothing is stuck.")]


def _unsure(work: Work, alive: Collection[WorkerRow]) -> Iterator[Finding]:
    """Workers whose death, or whose life, others cannot see."""
    now = work.symptoms.now
    for row in work.workers:
        silent_s = (now - row.heartbeat_at) // 1_000_000
        if row not in alive and row.leases:
            said = "is gone" if row.absent else f"has sent no heartbeat for {silent_s} s"
            yield Finding(
                "workers",
                "problem",
                f"worker {row.id} {said} and holds {plural(row.leases, 'lease')}.",
                f"If pid {row.pid} on {row.hostname} is alive, its log says why its heartbeats fail. Other workers "
                f"continue its jobs when their leases end.",
            )
    unsigned = [row.id for row in alive if not row.presence and now - row.started_at > _SETTLED_US]
    if unsigned and work.shows_presence:
        yield Finding(
            "workers",
            "warning",
            f"{plural(len(unsigned), 'worker shows', 'workers show')} no presence: {_some(unsigned)}. If one dies, "
            f"others notice only when its leases end.",
            "Their logs say why: no connection was free for it, the URL leads through a pooler, or the number belongs "
            "to a worker that outlived a restore.",
        )


def _too_old(alive: Sequence[WorkerRow], oldest_code: int) -> Iterator[Finding]:
    if old := [row.id for row in alive if (row.code or migrate.UNKNOWN_CODE) < oldest_code]:
        yield Finding(
            "workers",
            "problem",
            f"{plural(len(old), 'live worker runs', 'live workers run')} code older than schema {oldest_code}, "
            f"which the tables need: {_some(old)}.",
            "Replace them with the new release: what they claim may fail. SIGTERM drains them.",
        )


def _hanging(alive: Sequence[WorkerRow]) -> Iterator[Finding]:
    hanging = [(row.id, workers.slots_of(row).get(workers.HANGING, (0, 0))) for row in alive]
    if found := [f"{id} ({taken} of {limit})" for id, (limit, taken) in hanging if taken]:
        yield Finding(
            "workers",
            "warning",
            f"threads of {plural(len(found), 'worker')} hang in calls that timed out or were cancelled: "
            f"{_some(found)}.",
            'Declare what may hang with isolate="process", which a timeout really ends, and start those workers again.',
        )


def _held_loops(rows: Sequence[WorkerRow]) -> Iterator[Finding]:
    """Of workers that a blocked loop has kept silent too."""
    for row in rows:
        hold = workers.loop_hold_of(row)
        if hold is not None:
            since_us = 0 if hold.ago is not None else max(0, row.now - row.heartbeat_at)
            now = hold._replace(seconds=hold.seconds + since_us / 1e6)
            yield Finding(
                "workers",
                "warning",
                f"{now.words(f'the event loop of worker {row.id}')}: nothing else of that worker could run meanwhile.",
                f"{workers.HOLD_REMEDY} The worker's log has the stack where it stood.",
            )


def _ahead(ahead: AheadOfClock, *, there_are_workers: bool) -> Iterator[Finding]:
    counts = [(ahead.workers, "worker"), (ahead.lanes, "lane"), (ahead.leases, "lease")]
    if found := [plural(count, what) for count, what in counts if count]:
        said = "A worker corrects that within seconds" if there_are_workers else "Start a worker: it corrects that"
        yield Finding(
            "clock",
            "warning",
            f"There are times in the future, of {', '.join(found)}: the database's clock went back.",
            f"{said}. Synchronise the database's clock with NTP, and do not set it by hand.",
        )


def _paused(rows: Sequence[QueueRow], blocked: Mapping[str, int]) -> Iterator[Finding]:
    for row in rows:
        if row.paused_at is not None:
            reason = f": {row.pause_reason.rstrip('.')}" if row.pause_reason else ""
            kept = plural(blocked.get(row.name, 0), "job that waits", "jobs that wait")
            held = f" It also keeps {kept} in lanes." if blocked.get(row.name) else ""
            yield Finding(
                "queues",
                "note",
                f"queue {row.name} is paused{reason}.{held}",
                f"`holdfast queues resume {shell_word(row.name)}` resumes it.",
            )


def _unfired(rows: Sequence[ScheduleRow]) -> Iterator[Finding]:
    for row in rows:
        if row.error is not None and row.paused_at is None:
            yield Finding(
                "schedules",
                "problem",
                f"schedule {row.name} cannot be fired: {row.error}",
                f"Start a worker that declares it correctly, or `holdfast schedules delete {shell_word(row.name)}`.",
            )


def _misplaced(found: Sequence[Misplaced]) -> Iterator[Finding]:
    """A job is in ready, later, lease or ended, never in two of them, and where it says."""
    if found:
        named = [f"{row.id or f'number {row.seq}'} ({_places(row)})" for row in found]
        yield Finding(
            "jobs",
            "problem",
            f"{plural(len(found), 'job is', 'jobs are')} not in exactly one of the tables ready, later, lease and "
            f"ended, or there under a route, priority, slot or lane that the job does not have: {_some(named)}.",
            "Holdfast itself never does that: something else has changed its tables. Find out what was run on the "
            "database, and restore those rows; a job that is in none of them, or in the wrong place, may never run.",
        )


def _places(row: Misplaced) -> str:
    if row.id is None:
        return "has no job"
    if row.astray and row.places == 1:
        return "in the wrong place"
    return "in none" if row.places == 0 else f"in {row.places}"


def _unserved(work: Work, taking: Collection[WorkerRow]) -> Iterator[Finding]:
    if not taking:
        yield from _alone(work.backlogs)
        return
    for backlog in work.backlogs:
        route = Route(backlog.id, backlog.queue, backlog.capabilities)
        if not backlog.pending or any(
            serves(route, json.loads(row.queues), frozenset(json.loads(row.capabilities))) for row in taking
        ):
            continue
        needs = ", ".join(need for need in json.loads(backlog.capabilities) if need != LANE)
        live = (
            "the live worker does not serve" if len(taking) == 1 else f"none of the {len(taking)} live workers serves"
        )
        yield Finding(
            "work",
            "problem",
            f"{_waiting(backlog.queue, backlog.pending)} for a worker with {needs}, and {live} them.",
            "Start one that does, or cancel them; `holdfast jobs why ID` explains one.",
        )


def _alone(backlogs: Collection[Backlog]) -> Iterator[Finding]:
    """What waits in each queue while no worker is there at all."""
    for queue in sorted({backlog.queue for backlog in backlogs if backlog.pending}):
        pending = sum(backlog.pending for backlog in backlogs if backlog.queue == queue)
        said = f"{_waiting(queue, pending)}, and no worker is alive."
        yield Finding("work", "problem", said, "Start one: `holdfast worker …`.")


def _waiting(queue: str, pending: int) -> str:
    more = " or more" if pending >= CAP else ""
    return plural(pending, f"job of queue {queue} waits", f"jobs of queue {queue} wait", more=more)


def _late(symptoms: Symptoms, *, there_are_workers: bool) -> Iterator[Finding]:
    level: Level = "problem" if there_are_workers else "warning"
    remedy = (
        "Workers do that within a second: check their logs, and whether they reach the database."
        if there_are_workers
        else "Start a worker: it handles them first."
    )
    for count, noun, what in (
        (symptoms.lapsed, "lease", "ended more than a minute ago, and no worker has taken the work back"),
        (symptoms.overdue, "job", "did not become ready within a minute of the time that was asked for"),
        (symptoms.late_lanes, "lane", "did not open within a minute of the time that was set"),
        (symptoms.late_schedules, "schedule", "did not fire within a minute of the time that was set"),
    ):
        if count:
            yield Finding("work", level, f"{plural(count, noun)} {what}.", remedy)


def _in_lanes(work: Work, *, there_are_workers: bool) -> Iterator[Finding]:
    if work.stranded:
        yield Finding(
            "lanes",
            "problem" if there_are_workers else "warning",
            f"{plural(len(work.stranded), 'lane has', 'lanes have')} room and blocked jobs, and no worker opens them: "
            f"{_some(work.stranded)}.",
            "The worker that holds the duty cleanup opens them within a minute. If this returns, a program of an "
            "older version still enqueues or works: replace it."
            if there_are_workers
            else "Start a worker: it opens them within a minute.",
        )
    if work.missing:
        yield Finding(
            "lanes",
            "warning",
            f"the limits of {plural(len(work.missing), 'lane')} are missing: {_some(work.missing)}. "
            "Their jobs run one at a time and start once a second at most.",
            "Enqueue one such job with the program that declares it: that stores the limits again.",
        )


def _unheld(duties: Sequence[DutyRow], taking: Sequence[WorkerRow], now: int) -> Iterator[Finding]:
    """A duty may be between two holders for a moment, but not while a worker has been there for long."""
    settled = any(now - row.started_at > GRACE_US for row in taking)
    held = {row.name for row in duties if row.held_until > now}
    for name in DUTIES:
        if settled and name not in held:
            yield Finding(
                "work", "warning", f"no worker holds the duty {name}.", "A worker takes it soon; else check the logs."
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
