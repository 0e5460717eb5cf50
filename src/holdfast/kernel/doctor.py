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
from holdfast.errors import HoldfastError
from holdfast.kernel import clocks, migrate, queues, schedules, watch, workers
from holdfast.kernel.database import Database
from holdfast.kernel.drivers.facts import (
    Blocker,
    FileFacts,
    ServerFacts,
    blockers,
    facts,
    free_space,
    open_alone,
)
from holdfast.kernel.duties import DUTIES
from holdfast.kernel.queues import CAP
from holdfast.kernel.records import AheadOfClock, DutyRow, Route, WorkerRow
from holdfast.kernel.records_flow import QueueRow, ScheduleRow
from holdfast.kernel.routes import LANE, serves
from holdfast.kernel.sightings import Backlog, Symptoms
from holdfast.settings import Settings
from holdfast.version import VERSION

Level = Literal["ok", "note", "warning", "problem"]

GRACE_US = 60_000_000  # what a sweep should have done within a second is late after this
_FULL_QUEUE = 0.1  # of 8 GB: hints alone never gather like that
_LEAST_CONNECTIONS = 3  # of a worker: for statements, heartbeats and presence
_BESIDE_POOL = 2  # for heartbeats and presence
_DEAD_ROWS = 200_000
_LONG_TRANSACTION = 600
_SETTLED_US = 30_000_000  # a worker that came later may still be taking its presence
_LEAST_DISK = 512 * 1024 * 1024
_FULL_DISK = 1_000_000
_LARGE_LOG = 64 * 1024 * 1024


class Finding(NamedTuple):
    check: str
    level: Level
    sentence: str
    remedy: str = ""


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
            await database.transact(workers.list_workers, all=False, limit=10_000),
            await database.transact(workers.list_duties),
            await database.transact(queues.list_queues),
            await database.transact(queues.count_blocked),
            await database.transact(watch.stranded_lanes),
            await database.transact(watch.missing_lanes),
            await database.transact(schedules.list_schedules),
            await database.transact(clocks.ahead_of_clock, lease_ttl_us=microseconds(settings.lease_ttl)),
            stored.oldest_code if stored else 0,
        )
        found = await facts(database, ports)
    except HoldfastError as problem:  # its message says what to do
        return [*findings, *_disk(free_space(database)), Finding("database", "problem", str(problem))]
    except OSError as problem:
        said = f"{database.dialect} cannot be used: {problem}."
        return [*findings, *_disk(free_space(database)), Finding("database", "problem", said)]
    work = work._replace(shows_presence=found is not None and not (isinstance(found, ServerFacts) and found.pooled))
    if isinstance(found, ServerFacts):
        findings += judge_server(found, settings, sum(row.status == "active" for row in work.workers))
    elif isinstance(found, FileFacts):
        findings += judge_file(found, settings)
    return [*findings, *judge_work(work)]


async def _opened(database: Database) -> list[Finding]:
    """Open it as everybody does, or, where the disk has no room for that, alone."""
    try:
        await database.open()
    except (HoldfastError, OSError):
        free = free_space(database)
        if free is None or free >= _FULL_DISK or not await open_alone(database):
            raise
        return [
            Finding(
                "database",
                "problem",
                "no process can open the database: there is no room for the files beside it. Doctor has it alone now.",
                "Free some space, then start the workers again.",
            )
        ]
    return []


def judge_blockers(found: Sequence[Blocker], settings: Settings) -> Iterator[Finding]:
    patience = settings.lock_patience
    for blocker in found:
        whose = f"{blocker.name or 'a program without a name'}, role {blocker.role}, {blocker.state}"
        age = "" if blocker.open_for is None else f" in a transaction that is open for {blocker.open_for} s"
        long = max(blocker.longest, blocker.open_for or 0) >= patience
        yield Finding(
            "locks",
            "problem" if long else "warning",
            f"{blocker.waiting} sessions of Holdfast wait for a lock of session {blocker.pid} ({whose}){age}; "
            f"they give up after {patience:.0f} s and try again.",
            f"End that transaction, or its session: select pg_terminate_backend({blocker.pid}).",
        )


def judge_server(found: ServerFacts, settings: Settings, live: int) -> Iterator[Finding]:
    yield Finding("server", "ok", f"PostgreSQL {found.version}.")
    yield from _durability(found, settings)
    yield _clock(found)
    yield from _hints(found)
    yield _connections(found, settings, live)
    yield from _disk(found.free)
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
            "synchronous_commit is off: a crash of the server can lose work that was accepted moments before.",
            "Set synchronous_commit = on, or choose that trade knowingly with HOLDFAST_PROFILE=fast.",
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
            "Give workers a URL past the pooler to have both.",
        )
    elif found.hint_seconds is None:
        yield Finding(
            "wake-ups",
            "warning",
            "a NOTIFY did not come back within 5 s; workers find work by polling.",
            "Look for a proxy that swallows notifications, or for a listener that blocks the server's queue "
            "(pg_notification_queue_usage()).",
        )
    else:
        yield Finding("wake-ups", "ok", f"NOTIFY comes back after {found.hint_seconds * 1_000:.0f} ms.")
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
    said = f"{found.used} of {room} connections are used; {live} live workers may use {live * each}"
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
            f"{said} under load, which is more than there are.",
            "Raise max_connections, lower HOLDFAST_CONNECTIONS, or run fewer processes with more slots each.",
        )
    return Finding("connections", "ok", f"{said} under load.")


def _vacuum(found: ServerFacts) -> Iterator[Finding]:
    if not found.autovacuum:
        yield Finding(
            "vacuum",
            "problem",
            "autovacuum is off: the job table grows with every change and slows every claim.",
            "Set autovacuum = on in postgresql.conf and reload.",
        )
    if not found.owns:
        yield Finding(
            "vacuum",
            "note",
            f"the tables belong to {found.owner}; as {found.role}, VACUUM skips them without an error.",
            f"When you vacuum by hand, do it as {found.owner}.",
        )
    if found.dead > max(_DEAD_ROWS, found.live):
        long = found.longest_transaction or 0
        cause = f" A transaction is open for {long} s, and keeps them." if long > _LONG_TRANSACTION else ""
        yield Finding(
            "vacuum",
            "warning",
            f"the job table has {found.dead:,} dead rows beside {found.live:,} live ones.{cause}",
            "End transactions that stay open (pg_stat_activity), then VACUUM the job table.",
        )
    elif (found.longest_transaction or 0) > _LONG_TRANSACTION:
        yield Finding(
            "vacuum",
            "warning",
            f"a transaction is open for {found.longest_transaction} s: nothing that died since can be vacuumed.",
            "Find it in pg_stat_activity by xact_start, and end it.",
        )
    elif found.autovacuum:
        yield Finding("vacuum", "ok", f"{found.dead:,} dead rows beside {found.live:,} live ones in the job table.")


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
            f"the write-ahead log is {found.wal / 1e6:,.0f} MB: some process reads for long, or no worker is there to "
            "cut it.",
            "End what reads the file for long (a backup, a shell, a stopped process); a worker then cuts the log.",
        )
    yield from _disk(found.free)


def _disk(free: int | None) -> Iterator[Finding]:
    if free is None or free >= _LEAST_DISK:
        return
    full = free < _FULL_DISK
    yield Finding(
        "disk",
        "problem" if full else "warning",
        f"{'' if full else 'only '}{free // 1_000_000:,} MB are free on the disk of the database"
        f"{': nothing more can be accepted.' if full else '.'}",
        "Free some space; `holdfast prune` makes room inside the file.",
    )


def judge_work(work: Work) -> Iterator[Finding]:
    now = work.symptoms.now
    alive = [row for row in work.workers if row.heartbeat_at + row.ttl_us > now]
    taking = [row for row in alive if row.status == "active"]
    if silent := [row.id for row in work.workers if row not in alive]:
        yield Finding(
            "workers",
            "warning",
            f"{len(silent)} workers are silent beyond their time and nobody has judged them: {_some(silent)}.",
            "A live worker does that within seconds; start one.",
        )
    else:
        slots = sum(row.slots for row in taking)
        yield Finding("workers", "ok", f"{len(taking)} workers take jobs, with {slots} slots.")
    yield from _unsure(work, alive)
    yield from _too_old(alive, work.oldest_code)
    yield from _ahead(work.ahead, there_are_workers=bool(taking))
    yield from _paused(work.queues, work.blocked)
    yield from _unfired(work.schedules)
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
            yield Finding(
                "workers",
                "problem",
                f"worker {row.id} has shown no life for {silent_s} s and holds {row.leases:,} leases.",
                f"If pid {row.pid} on {row.hostname} lives, see in its log why its heartbeats fail. Its jobs go on "
                f"elsewhere when their leases end, once a worker is alive.",
            )
    unsigned = [row.id for row in alive if not row.presence and now - row.started_at > _SETTLED_US]
    if unsigned and work.shows_presence:
        yield Finding(
            "workers",
            "warning",
            f"{len(unsigned)} workers show no presence: {_some(unsigned)}. Only the end of their leases would show "
            f"their death.",
            "Their logs say why: no connection was free for it, the URL leads through a pooler, or the number belongs "
            "to a worker that outlived a restore.",
        )


def _too_old(alive: Sequence[WorkerRow], oldest_code: int) -> Iterator[Finding]:
    # A row without a code is of a release from before version 6; which one, it does not say.
    if old := [row.id for row in alive if (row.code or migrate.CODE_UNTOLD) < oldest_code]:
        yield Finding(
            "workers",
            "problem",
            f"{len(old)} live workers run code older than schema {oldest_code}, which the tables need: {_some(old)}.",
            "Replace them with the new release: what they claim may fail. SIGTERM drains them.",
        )


def _ahead(ahead: AheadOfClock, *, there_are_workers: bool) -> Iterator[Finding]:
    counts = [(ahead.workers, "workers"), (ahead.lanes, "lanes"), (ahead.leases, "leases")]
    if found := [f"{count:,} {what}" for count, what in counts if count]:
        said = "A worker mends that within seconds" if there_are_workers else "Start a worker: it mends that"
        yield Finding(
            "clock",
            "warning",
            f"{', '.join(found)} bear times that the database's clock has yet to reach: it went back.",
            f"{said}. Synchronise the database's clock with NTP, and do not set it by hand.",
        )


def _paused(rows: Sequence[QueueRow], blocked: Mapping[str, int]) -> Iterator[Finding]:
    for row in rows:
        if row.paused_at is not None:
            reason = f": {row.pause_reason}" if row.pause_reason else ""
            held = f" It also keeps {blocked[row.name]:,} jobs that wait in lanes." if blocked.get(row.name) else ""
            yield Finding(
                "queues",
                "note",
                f"queue {row.name} is paused{reason}.{held}",
                f"`holdfast queues resume {row.name}` lets it go on.",
            )


def _unfired(rows: Sequence[ScheduleRow]) -> Iterator[Finding]:
    for row in rows:
        if row.error is not None and row.paused_at is None:
            yield Finding(
                "schedules",
                "problem",
                f"schedule {row.name} cannot be fired: {row.error}",
                f"Start a worker that declares it rightly, or `holdfast schedules rm {row.name}`.",
            )


def _unserved(work: Work, taking: Collection[WorkerRow]) -> Iterator[Finding]:
    for backlog in work.backlogs:
        route = Route(backlog.id, backlog.queue, backlog.capabilities)
        if not backlog.pending or any(
            serves(route, json.loads(row.queues), frozenset(json.loads(row.capabilities))) for row in taking
        ):
            continue
        needs = ", ".join(need for need in json.loads(backlog.capabilities) if need != LANE)
        jobs = f"{backlog.pending:,}{' or more' if backlog.pending >= CAP else ''} jobs of queue {backlog.queue} wait"
        if not taking:
            yield Finding("work", "problem", f"{jobs}, and no worker is alive.", "Start one: `holdfast worker …`.")
        else:
            yield Finding(
                "work",
                "problem",
                f"{jobs} for a worker with {needs}, and none of the {len(taking)} that live serves them.",
                "Start one that does, or cancel them; `holdfast jobs why ID` explains one.",
            )


def _late(symptoms: Symptoms, *, there_are_workers: bool) -> Iterator[Finding]:
    level: Level = "problem" if there_are_workers else "warning"
    remedy = (
        "Workers do that within a second: look into their logs, and whether they reach the database."
        if there_are_workers
        else "Start a worker: it deals with them first."
    )
    for count, what in (
        (symptoms.lapsed, "leases ended more than a minute ago and nobody has taken their jobs back"),
        (symptoms.overdue, "jobs were due more than a minute ago and nobody has woken them"),
        (symptoms.late_lanes, "lanes should have been opened more than a minute ago"),
        (symptoms.late_schedules, "schedules are more than a minute late"),
    ):
        if count:
            yield Finding("work", level, f"{count:,} {what}.", remedy)


def _in_lanes(work: Work, *, there_are_workers: bool) -> Iterator[Finding]:
    if work.stranded:
        yield Finding(
            "lanes",
            "problem" if there_are_workers else "warning",
            f"{len(work.stranded):,} lanes have room and blocked jobs, and nobody is to open them: "
            f"{_some(work.stranded)}.",
            "The worker that holds the duty cleanup opens them within a minute. Where it comes back, a program of an "
            "older version enqueues or works beside: replace it."
            if there_are_workers
            else "Start a worker: it opens them within a minute.",
        )
    if work.missing:
        yield Finding(
            "lanes",
            "warning",
            f"the limits of {len(work.missing):,} lanes are missing: {_some(work.missing)}. "
            "Their jobs run one at a time and start once a second at most.",
            "Enqueue one such job with the program that declares it: that writes the limits again.",
        )


def _unheld(duties: Sequence[DutyRow], taking: Sequence[WorkerRow], now: int) -> Iterator[Finding]:
    """A duty may be between two holders for a moment, but not while a worker has been there for long."""
    settled = any(now - row.started_at > GRACE_US for row in taking)
    held = {row.name for row in duties if row.held_until > now}
    for name in DUTIES:
        if settled and name not in held:
            yield Finding(
                "work", "warning", f"nobody holds the duty {name}.", "Look into the workers' logs; one takes it soon."
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
