"""The doctor's judgement of the database itself: durability, clocks, room, locks, vacuum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from holdfast.kernel.drivers.facts import Blocker, FileFacts, Horizon, ServerFacts
from holdfast.settings import Settings
from holdfast.shown_text import plural

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
