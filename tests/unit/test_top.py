"""The frame of `holdfast top`: what it shows at any size, and what keys do."""

from __future__ import annotations

import json

import pytest

from holdfast.agents.listing_rows import AgentActivity, OpenInquiries
from holdfast.agents.rows import ClosedLane
from holdfast.agents.values import closed_lane_of
from holdfast.cli.tables import ASCII, Cell, ansi, bar, clip, fit, spark, text, width_of
from holdfast.cli.top import PANELS, FrameView, StoreSample, _as_dict, frame, plain_frame, pressed
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.flow_rows import LaneRow, QueueRow
from holdfast.kernel.ids import JobId
from holdfast.kernel.queues import CAP, QueueStats
from holdfast.kernel.rows import Change, DutyRow

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def queue(name: str, *, paused: bool = False, pending: int = 0, failed: int = 0) -> QueueStats:
    row = QueueRow(name, "requeue", 0, None, None, NOW - 90 * SECOND if paused else None, "lunch" if paused else None)
    return QueueStats(row, pending, 0, 1, 0, 60, failed, 0)


def worker(id: str, *, leases: int = 3, silent: int = 2) -> WorkerRow:
    beat = NOW - silent * SECOND
    return WorkerRow(
        *(7, id, id, "host", 1, "0", "active", "[]", "null", 10, leases, 1),
        *(beat, beat, 60 * SECOND, None, None, NOW, leases),
    )


def failure(number: int, message: str = "no such page") -> Change:
    error = json.dumps({"type": "processing_error", "message": message})
    return Change(number, JobId(str(number)), "shop.fetch", "pages", "failed", NOW - number * SECOND, error)


def sample(**changes: object) -> StoreSample:
    lane = LaneRow("job:shop.fetch", 2, None, 1, 0, NOW + SECOND, 2, 9)
    made = {
        "database": "sqlite shop.db",
        "schema": "3",
        "epoch": 4,
        "now": NOW,
        "queues": [queue("mail", pending=CAP), queue("pages", failed=2), queue("reports", paused=True)],
        "workers": [worker("mill-1"), worker("mill-2", leases=14)],
        "duties": [DutyRow("cleanup", 1, 7, NOW + SECOND)],
        "lanes": [lane],
        "failures": [failure(number) for number in range(1, 41)],
        "history": {"mail": [0, 1, 4, 8], "pages": [1] * 60},
    }
    return StoreSample(**{**made, **changes})  # type: ignore[arg-type]


def shown(given: StoreSample, look: FrameView) -> list[str]:
    return [text(line) for line in frame(given, look)]


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 10), (20, 5), (500, 100)])
def test_a_frame_fills_the_terminal_and_no_more(size: tuple[int, int]) -> None:
    lines = frame(sample(), FrameView(*size))
    assert len(lines) == size[1]
    assert all(sum(width_of(span.text) for span in line) <= size[0] for line in lines)


def test_a_small_terminal_shows_something_of_everything() -> None:
    lines = shown(sample(), FrameView(80, 24))
    assert lines[0].startswith("holdfast sqlite shop.db")
    assert lines[0].endswith("schema 3 · epoch 4 · 08:00:00 UTC")
    assert lines[1].startswith("2 workers · 13/20 slots █")
    heads = [line.split()[0] for line in lines if line and line.split()[0].isupper()]
    assert heads == ["QUEUES", "WORKERS", "LANES", "FAILURES"]
    (mail,) = [line for line in lines if line.startswith("mail")]
    assert mail.split()[:4] == ["mail", "10,000+", "0", "1"]
    assert mail.endswith("▁▂▅█")
    assert any(line.startswith("reports      ‖") and line.endswith("paused 90s: lunch") for line in lines)
    assert any("10/10+4" in line and "mill-2" in line for line in lines), "what is claimed ahead is not a busy slot"
    assert any("job:shop.fetch" in line and "2/2" in line and "when one ends" in line for line in lines)
    assert any("shop.fetch  no such page" in line for line in lines)


def test_duties_without_room_say_that_they_are_cut() -> None:
    duties = [DutyRow("cleanup", 1, 7, NOW + SECOND), DutyRow("schedules", 1, 7, NOW + SECOND)]
    given = sample(workers=[worker("018f5ba0-3bd4-7000-8000-00000000000a")], duties=duties)
    (narrow,) = [line for line in shown(given, FrameView(80, 24)) if line.startswith("018f5ba0")]
    assert narrow.endswith("  clean…")
    (wide,) = [line for line in shown(given, FrameView(120, 40)) if line.startswith("018f5ba0")]
    assert wide.rstrip().endswith("  cleanup schedules")


def test_the_chosen_panel_gets_the_room_and_can_be_scrolled() -> None:
    chosen = shown(sample(), FrameView(80, 24, chosen=PANELS.index("FAILURES")))
    others = shown(sample(), FrameView(80, 24, chosen=0))
    assert sum("no such page" in line for line in chosen) > sum("no such page" in line for line in others)
    scrolled = shown(sample(), FrameView(80, 24, chosen=PANELS.index("FAILURES"), offset=5))
    assert any(line.startswith("6s ago") for line in scrolled)
    assert not any(line.startswith("1s ago") for line in scrolled)
    (head,) = [line for line in scrolled if line.startswith("FAILURES")]
    assert head.endswith(" more")


def test_an_idle_store_is_shown_as_one() -> None:
    idle = sample(queues=[], workers=[], duties=[], lanes=[], failures=[], history={})
    lines = plain_frame(idle, 80).splitlines()
    assert "no worker is alive" in lines
    assert lines[-1] == "none in the last hour"


def test_what_jobs_say_cannot_command_the_terminal() -> None:
    given = sample(failures=[failure(1, "\x1b[2J\x07gone\nsecond line")], queues=[queue("a\x1b[31mb")])
    for line in frame(given, FrameView(120, 30)):
        assert not any(char in span.text for span in line for char in "\x1b\x07\n")


def test_a_store_that_does_not_answer_leaves_the_last_look() -> None:
    lines = shown(sample(), FrameView(80, 24, trouble="PostgreSQL cannot be reached"))
    assert lines[1] == "the store does not answer: PostgreSQL cannot be reached"
    assert any(line.startswith("mail") for line in lines)


def test_a_plain_terminal_gets_plain_signs() -> None:
    plain_frame(sample(database="x"), 80, ASCII).replace("·", "-").encode("ascii")


def test_keys() -> None:
    look = FrameView(80, 24)
    assert pressed(look, "p").paused
    assert not pressed(pressed(look, "p"), "p").paused
    assert pressed(look, "tab").chosen == 1
    assert pressed(look, "back").chosen == len(PANELS) - 1
    assert pressed(pressed(look, "down"), "up").offset == 0
    assert pressed(look, "up").offset == 0
    assert pressed(pressed(look, "down"), "tab").offset == 0
    assert pressed(look, "x") == look


def test_a_sparkline_is_as_high_as_its_highest() -> None:
    assert text(spark([0, 1, 2, 4, 8], 5)) == "▁▂▃▅█"
    assert text(spark([1, 2, 3], 2)) == "▆█", "the latest"
    assert width_of("".join(span.text for span in spark([5], 4))) == 4
    assert spark([1], 0) == []
    assert text(spark([0, 0], 2)) == "▁▁"


def test_a_bar_shows_any_use_and_when_it_is_full() -> None:
    assert text(bar(1, 1_000, 5)) == "█░░░░"
    assert text(bar(0, 10, 5)) == "░░░░░"
    assert bar(12, 10, 5)[0] == Cell("█████", "warn")
    assert text(bar(0, 0, 3)) == "░░░"


def test_text_is_fitted_by_columns_not_characters() -> None:
    assert fit("queue", 8) == "queue   "
    assert fit("queue", 8, right=True) == "   queue"
    assert fit("a long name", 6) == "a lon…"
    assert width_of(fit("画像処理", 5)) == 5
    assert fit("x", 0) == ""
    assert clip([Cell("abc"), Cell("def", "bad")], 4) == [Cell("abc"), Cell("d", "bad")]
    assert ansi([Cell("a"), Cell("b", "bad")]) == "a\x1b[1;31mb\x1b[0m"
    assert ansi([Cell("a", "good"), Cell("b", "chosen")], colored=False) == "a\x1b[1;7mb\x1b[0m"


def test_a_lane_that_waits_for_a_person_is_seen_first() -> None:
    waits = ClosedLane("anthropic#1/claude", None, 1, "auth: invalid x-api-key", NOW - 7200 * SECOND, NOW, 12)
    until = ClosedLane("anthropic#1/other", NOW + 40 * SECOND, 0, "rate_limit: later", NOW, NOW, 3)
    lines = plain_frame(sample(closed=[until, waits]), 140).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("LANES"))
    assert lines[at + 1].startswith("anthropic#1/claude")
    assert "by a person, for 2h: auth: invalid x-api-key" in lines[at + 1]
    assert " 12 " in lines[at + 1]
    assert lines[at + 2].startswith("anthropic#1/other")
    assert "in 40s: rate_limit: later" in lines[at + 2]
    assert lines[at + 3].startswith("job:shop.fetch")
    told = _as_dict(sample(closed=[waits]))["closed_lanes"]
    assert told == [closed_lane_of(waits)]


def test_agents_show_what_they_cost_and_whom_they_wait_for() -> None:
    busy = AgentActivity("desk", 12, 2, 40, 1, 90, 1_250_000_000)
    quiet = AgentActivity("guide", 0, 0, 3, 0, 3, 1_200_000)
    given = sample(agents=[busy, quiet], inquiries=OpenInquiries(2, NOW - 200 * SECOND), failures=[])
    lines = shown(given, FrameView(80, 30))
    assert lines[2] == "12 open runs · 1.25 USD/min · 2 open inquiries, the oldest for 3m"
    at = next(number for number, line in enumerate(lines) if line.startswith("AGENTS"))
    assert lines[at].split() == ["AGENTS", "OPEN", "ASKING", "DONE/M", "FAIL/M", "TURNS/M", "USD/M"]
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["desk", "12", "2", "39", "1", "90", "1.25"],
        ["guide", "0", "0", "3", "0", "3", "0.0012"],
    ]
    assert not any("AGENTS" in line or "USD" in line for line in shown(sample(), FrameView(80, 30)))


@pytest.mark.parametrize(
    ("interval_us", "pace"),
    [
        (50_000, "1,200/min"),
        (1, "60,000,000/min"),
        (7 * SECOND, "8.57/min"),
        (60 * SECOND, "1/min"),
        (600 * SECOND, "1 every 10m"),
    ],
)
def test_rates_are_written_as_people_write_numbers(interval_us: int, pace: str) -> None:
    lane = LaneRow("job:shop.fetch", 2, interval_us, 1, 0, NOW + SECOND, 2, 9)
    (line,) = [line for line in shown(sample(lanes=[lane]), FrameView(120, 40)) if line.startswith("job:shop.fetch")]
    assert f"  {pace}  " in line
