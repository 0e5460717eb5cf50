"""The doctor's judgement, without a sick database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.agents.doctor import judge_lanes
from holdfast.agents.rows import ClosedLane
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.doctor import Finding, Work, judge_blockers, judge_file, judge_server, judge_work
from holdfast.kernel.drivers.facts import Blocker, FileFacts, Horizon, ServerFacts
from holdfast.kernel.duties import DUTIES
from holdfast.kernel.flow_rows import QueueRow, ScheduleRow
from holdfast.kernel.ids import JobId
from holdfast.kernel.queues import CAP
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import AheadOfClock, Backlog, DutyRow, Misplaced, Symptoms
from holdfast.settings import Settings

NOW = 1_800_000_000_000_000
MINUTE = 60_000_000

SERVER = ServerFacts(
    version="17.2",
    fsync=True,
    synchronous_commit="on",
    full_page_writes=True,
    autovacuum=True,
    max_connections=100,
    reserved=3,
    used=20,
    role="app",
    owner="app",
    may_vacuum=True,
    table="ready",
    live=1_000,
    dead=50,
    pooled=False,
    ahead_us=1_000,
    doubt_us=500,
    hint_seconds=0.002,
)
FILE = FileFacts("3.51.3", "wal", 2, "ext4", 1_000_000, 10**12)


def on_server(live: int = 2, settings: Settings | None = None, **changes: Any) -> dict[str, Finding]:
    found = judge_server(SERVER._replace(**changes), settings or Settings(), live)
    return {finding.check: finding for finding in found}


def worker(**changes: Any) -> WorkerRow:
    row = WorkerRow(
        seq=7,
        id="mill-1",
        name="mill",
        hostname="host",
        pid=1,
        version="0",
        status="active",
        capabilities=json.dumps(["job:greet"]),
        queues="null",
        slots=10,
        active=0,
        presence=1,
        started_at=NOW - 10 * MINUTE,
        heartbeat_at=NOW,
        ttl_us=MINUTE,
        stopped_at=None,
        reason=None,
        now=NOW,
        leases=0,
    )
    return row._replace(**changes)


HELD = [DutyRow(name, 1, 7, NOW + MINUTE) for name in DUTIES]
WELL = Work(Symptoms(0, 0, 0, 0, NOW), [], [worker()], HELD, [])


def in_store(**changes: Any) -> list[Finding]:
    return list(judge_work(WELL._replace(**changes)))


def backlog(pending: int, kind: str = "greet", queue: str = "default") -> Backlog:
    route = route_for(queue, kind, laned=True)
    return Backlog(route.id, route.queue, route.capabilities, pending, NOW)


def test_a_well_server_is_ok() -> None:
    assert {finding.level for finding in on_server().values()} == {"ok"}


def test_durability_that_is_off_is_a_problem() -> None:
    assert on_server(fsync=False)["durability"].level == "problem"
    assert on_server(full_page_writes=False)["durability"].level == "problem"
    assert on_server(synchronous_commit="off")["durability"].level == "problem"
    chosen = on_server(settings=Settings(profile="fast"), synchronous_commit="off")
    assert chosen["durability"].level == "ok", "that trade was chosen"


def test_clocks_that_disagree() -> None:
    assert on_server(ahead_us=3_000_000)["clock"].level == "note"
    behind = on_server(ahead_us=-60_000_000)["clock"]
    assert (behind.level, "60.0 s behind" in behind.sentence) == ("warning", True)
    assert on_server(ahead_us=3_000_000, doubt_us=3_000_000)["clock"].level == "ok", "the answer took that long"


def test_wake_ups() -> None:
    assert on_server(pooled=True, hint_seconds=None)["wake-ups"].level == "note"
    assert on_server(hint_seconds=None)["wake-ups"].level == "warning"


def test_a_queue_of_notifications_that_nobody_takes() -> None:
    assert "notifications" not in on_server(hint_queue=0.02)
    found = on_server(hint_queue=0.34)["notifications"]
    assert (found.level, "34% full" in found.sentence) == ("warning", True)


def test_connections_are_counted_against_what_workers_may_use() -> None:
    assert "2 live workers may use 12" in on_server()["connections"].sentence
    assert on_server(live=17)["connections"].level == "warning"
    assert on_server(used=95)["connections"].level == "problem"


def test_what_keeps_vacuum_from_its_work() -> None:
    assert on_server(autovacuum=False)["vacuum"].level == "problem"
    other = list(judge_server(SERVER._replace(may_vacuum=False, owner="owner"), Settings(), 1))
    assert any(finding.level == "note" and "belong to owner" in finding.sentence for finding in other)
    many = on_server(dead=1_000_000)["vacuum"]
    assert (many.level, "the table ready has 1,000,000 dead rows" in many.sentence) == ("warning", True)


def test_who_needs_what_has_died() -> None:
    session = Horizon("session 7 (psql, role app, idle in transaction)", 50_000, 900)
    assert on_server(horizon=session._replace(seconds=60))["vacuum"].level == "ok"
    found = on_server(horizon=session)["vacuum"]
    assert found.level == "warning"
    assert found.sentence.startswith("session 7 (psql, role app, idle in transaction) has had a transaction open")
    both = on_server(dead=1_000_000, horizon=session)["vacuum"].sentence
    assert "1,000,000 dead rows beside 1,000 live ones. Session 7" in both
    assert both.endswith("open for 900 s, and prevents their removal.")
    slot = Horizon("replication slot spare", 2_000_000, None)
    assert "from 2,000,000 transactions ago" in on_server(horizon=slot)["vacuum"].sentence
    assert on_server(horizon=slot._replace(transactions=1_000))["vacuum"].level == "ok"


def test_a_job_stands_in_one_place() -> None:
    at_once = [Misplaced(3, JobId("one"), 0), Misplaced(4, JobId("two"), 2), Misplaced(5, None, 1)]
    (found,) = [finding for finding in in_store(misplaced=at_once) if finding.check == "jobs"]
    assert found.level == "problem"
    assert found.sentence.startswith("3 jobs are not in exactly one")
    assert "one (in none), two (in 2), number 5 (has no job)" in found.sentence
    (found,) = [each for each in in_store(misplaced=[Misplaced(6, JobId("six"), 1, 1)]) if each.check == "jobs"]
    assert "six (in the wrong place)" in found.sentence


def test_a_file() -> None:
    assert {finding.level for finding in judge_file(FILE, Settings())} == {"ok"}
    delete = {f.check: f.level for f in judge_file(FILE._replace(journal_mode="delete"), Settings())}
    assert delete["durability"] == "problem"
    short = {f.check: f.level for f in judge_file(FILE._replace(free=100_000_000), Settings())}
    assert short["disk"] == "warning"
    full = {f.check: f for f in judge_file(FILE._replace(free=1_000), Settings())}
    assert full["disk"].level == "problem"
    assert full["disk"].sentence.startswith("0 MB are free on the disk of the database")
    grown = {f.check: f for f in judge_file(FILE._replace(wal=100_000_000), Settings())}
    assert grown["log"].level == "warning"
    assert "the write-ahead log is 100 MB: a process has been reading for a long time" in grown["log"].sentence


def test_nothing_is_stuck() -> None:
    assert [finding.level for finding in in_store(backlogs=[backlog(5)])] == ["ok", "ok"]


def test_jobs_that_nobody_alive_can_run() -> None:
    (_, stuck) = in_store(backlogs=[backlog(CAP, "paint", "images"), backlog(3)])
    assert stuck.level == "problem"
    assert stuck.sentence.startswith("10,000 or more jobs of queue images wait for a worker with job:paint")
    (_, alone) = in_store(backlogs=[backlog(3)], workers=[])
    assert alone.sentence == "3 jobs of queue default wait, and no worker is alive."
    (_, several) = in_store(backlogs=[backlog(3), backlog(1, "paint")], workers=[])
    assert several.sentence == "4 jobs of queue default wait, and no worker is alive."
    (_, draining) = in_store(backlogs=[backlog(3)], workers=[worker(status="draining")])
    assert draining.level == "problem"


def test_what_a_sweep_should_have_done() -> None:
    (_, *late) = in_store(symptoms=Symptoms(1, 2, 3, 4, NOW))
    assert [(finding.level, finding.sentence.split()[0]) for finding in late] == [
        ("problem", "1"),
        ("problem", "2"),
        ("problem", "3"),
        ("problem", "4"),
    ]
    (_, lapsed) = in_store(symptoms=Symptoms(1, 0, 0, 0, NOW), workers=[])
    assert lapsed.level == "warning", "a worker would do it"


def test_workers_that_are_silent() -> None:
    (silent, *_) = in_store(workers=[worker(heartbeat_at=NOW - 5 * MINUTE)])
    assert (silent.level, "mill-1" in silent.sentence) == ("warning", True)


def test_a_silent_worker_that_holds_leases() -> None:
    (_, held, *_) = in_store(workers=[worker(heartbeat_at=NOW - 5 * MINUTE, leases=19)])
    assert (held.level, held.sentence) == (
        "problem",
        "worker mill-1 has sent no heartbeat for 300 s and holds 19 leases.",
    )


def test_a_worker_without_presence() -> None:
    hidden = worker(presence=0)
    (_, unsigned, *_) = in_store(workers=[hidden])
    assert (unsigned.level, "mill-1" in unsigned.sentence) == ("warning", True)
    (_, work) = in_store(workers=[hidden], shows_presence=False)
    assert work.level == "ok", "nobody can, behind a pooler"
    (_, work) = in_store(workers=[hidden._replace(started_at=NOW - 1)], duties=HELD)
    assert work.level == "ok", "it has just come"


def test_who_keeps_sessions_waiting_for_a_lock() -> None:
    blocker = Blocker(4711, "psql", "admin", "idle in transaction", 3, 4, 3)
    (brief,) = judge_blockers([blocker], Settings())
    assert brief.level == "warning"
    assert brief.sentence.startswith(
        "4 sessions of Holdfast wait for a lock of session 4711 (psql, role admin, idle in transaction) "
        "in a transaction that has been open for 3 s; a session gives up after 18 s"
    )
    assert "pg_terminate_backend(4711)" in brief.remedy
    (long,) = judge_blockers([blocker._replace(open_for=900)], Settings())
    assert long.level == "problem"
    (hidden,) = judge_blockers([blocker._replace(open_for=None, name="")], Settings())
    assert (hidden.level, "a program without a name" in hidden.sentence) == ("warning", True)


def test_a_duty_that_nobody_holds() -> None:
    (_, unheld) = in_store(duties=HELD[1:])
    assert unheld == Finding(
        "work", "warning", f"no worker holds the duty {DUTIES[0]}.", "A worker takes it soon; else check the logs."
    )
    fresh = in_store(duties=[], workers=[worker(started_at=NOW - MINUTE // 2)])
    assert [finding.level for finding in fresh] == ["ok", "ok"], "it has just come"


def test_blocked_jobs_that_nobody_lets_through() -> None:
    (_, stranded) = in_store(stranded=["job:sync/ann", "job:sync/bob"])
    assert (stranded.check, stranded.level) == ("lanes", "problem")
    assert stranded.sentence.startswith("2 lanes have room and blocked jobs, and no worker opens them: job:sync/ann")
    (_, alone) = in_store(stranded=["job:sync/ann"], workers=[])
    assert alone.level == "warning", "a worker would do it"


def test_lanes_whose_limits_are_missing() -> None:
    (_, missing) = in_store(missing=["job:sync/ann"])
    assert (missing.check, missing.level) == ("lanes", "warning")
    assert missing.sentence.startswith("the limits of 1 lane are missing: job:sync/ann. Their jobs run one at a time")


@pytest.mark.parametrize("reason", ["lunch", "lunch."])
def test_a_pause_says_what_else_it_keeps(reason: str) -> None:
    paused = QueueRow("mail", "requeue", 0, None, None, NOW, reason)
    (_, note, _) = in_store(queues=[paused], blocked={"mail": 1_200, "other": 3})
    assert note.sentence == "queue mail is paused: lunch. It also keeps 1,200 jobs that wait in lanes."


def test_a_pause_is_noted() -> None:
    paused = QueueRow("mail", "requeue", 0, None, None, NOW, "lunch")
    (_, note, _) = in_store(queues=[paused])
    assert note == Finding(
        "queues", "note", "queue mail is paused: lunch.", "`holdfast queues resume mail` resumes it."
    )


def test_a_schedule_that_cannot_be_fired_is_named() -> None:
    bad = ScheduleRow(
        name="nightly",
        kind="report",
        queue="default",
        cron="0 25 * * *",
        timezone="UTC",
        catch_up="one",
        job="{}",
        next_at=NOW - MINUTE,
        last_at=None,
        last_job=None,
        paused_at=None,
        retry_at=NOW + MINUTE,
        error="'0 25 * * *' is not a cron expression.",
        now=NOW,
    )
    (_, finding, _) = in_store(schedules=[bad])
    assert (finding.check, finding.level) == ("schedules", "problem")
    assert finding.sentence == "schedule nightly cannot be fired: '0 25 * * *' is not a cron expression."
    assert "holdfast schedules delete nightly" in finding.remedy
    assert len(in_store(schedules=[bad._replace(error=None), bad._replace(paused_at=NOW)])) == len(in_store())


def test_a_server_on_a_full_disk_of_this_machine_is_a_problem() -> None:
    def disk(free: int | None) -> list[str]:
        return [f.level for f in judge_server(SERVER._replace(free=free), Settings(), live=1) if f.check == "disk"]

    assert [disk(0), disk(100_000_000), disk(10**12), disk(None)] == [["problem"], ["warning"], [], []]


def test_live_workers_whose_code_is_too_old() -> None:
    rows = [worker(id=f"mill-{code}", code=code) for code in (5, 6, 7, None)]
    (_, old, _) = in_store(workers=rows, oldest_code=7)
    assert old.level == "problem"
    assert "3 live workers run code older than schema 7" in old.sentence
    assert "mill-5, mill-6, mill-None" in old.sentence
    assert len(in_store(workers=rows, oldest_code=1)) == 2
    gone = [worker(code=5, heartbeat_at=NOW - 5 * MINUTE)]
    assert "older than" not in " ".join(finding.sentence for finding in in_store(workers=gone, oldest_code=7))


def test_times_that_the_clock_has_yet_to_reach() -> None:
    (_, ahead, _) = in_store(ahead=AheadOfClock(workers=1, lanes=2_000, leases=0))
    assert (ahead.check, ahead.level) == ("clock", "warning")
    assert ahead.sentence.startswith("There are times in the future, of 1 worker, 2,000 lanes")
    assert "corrects that within seconds" in ahead.remedy


def test_threads_that_hang_are_named_with_what_to_do() -> None:
    row = worker(lines=json.dumps({"tools": [50, 1], "hanging": [125, 25]}))
    found = next(finding for finding in in_store(workers=[row]) if finding.level == "warning")
    assert found.check == "workers"
    assert found.sentence == "threads of 1 worker hang in calls that timed out or were cancelled: mill-1 (25 of 125)."
    assert "isolate=" in (found.remedy or "")


def test_who_holds_an_event_loop_is_named_with_what_to_do() -> None:
    still = worker(lines=json.dumps({"jobs": [20, 1], "loop": ["handler mail.send", 8.0, None]}))
    still = still._replace(heartbeat_at=still.now - 4_000_000)
    over = worker(lines=json.dumps({"jobs": [20, 1], "loop": ["handler mail.send", 8.0, 60.0]}))
    for row, said in (
        (still, "has held the event loop of worker mill-1 for 12 s and still holds it"),
        (over, "held the event loop of worker mill-1 for 8.0 s"),
    ):
        found = next(finding for finding in in_store(workers=[row]) if finding.level == "warning")
        assert found.check == "workers"
        assert found.sentence == f"handler mail.send {said}: nothing else of that worker could run meanwhile."
        assert "make the handler a plain `def`, or declare it with isolate=" in found.remedy


def test_a_lane_that_waits_for_a_person_is_a_warning_with_the_command() -> None:
    waits = ClosedLane("anthropic#1/claude", None, 1, "auth: invalid x-api-key", 1_800_000_000_000_000, 0, 12)
    until = ClosedLane("anthropic#1/other", 1_800_000_040_000_000, 0, "rate_limit: later", 0, 0, 10_001)
    first, second = judge_lanes([waits, until])
    assert (first.check, first.level, second.level) == ("lanes", "warning", "note")
    assert (
        "has waited for a person since 2027-01-15 08:00:00 UTC, and 12 wait behind it: auth: invalid" in first.sentence
    )
    assert first.remedy == "Fix that, then run `holdfast lanes open 'anthropic#1/claude'`."
    assert "closed until 2027-01-15 08:00:40 UTC, and 10,000 or more wait behind it" in second.sentence
