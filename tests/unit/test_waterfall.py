"""A waterfall is laid out so that everything is visible: short things, long idle times, what broke off."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.agents.api.waterfall import Span
from holdfast.http.pages.waterfall import MOST_ROWS, draw, lay_out

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def span(kind: Any, id: str, begin: float, end: float | None, parent: str | None = None, **given: Any) -> Span:
    return Span(
        kind=kind,
        id=id,
        parent=parent,
        name=given.pop("name", id),
        state=given.pop("state", "completed"),
        depth=0,
        started_at=BEGIN + timedelta(seconds=begin),
        ended_at=None if end is None else BEGIN + timedelta(seconds=end),
        **given,
    )


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def test_parts_stand_below_what_they_are_part_of() -> None:
    spans = [
        span("run", "r", 0, 10),
        span("turn", "r/1", 0, 4, "r"),
        span("turn", "r/2", 6, 10, "r"),
        span("call", "c", 4, 6, "r/1"),
        span("run", "child", 4, 6, "c"),
    ]
    rows = lay_out(spans, at(10)).rows
    assert [(row.id, row.depth) for row in rows] == [("r", 0), ("r/1", 1), ("c", 2), ("child", 3), ("r/2", 1)]
    assert [(row.x, row.width) for row in rows] == [(0, 1000), (0, 400), (400, 200), (400, 200), (600, 400)]


def test_a_long_idle_time_is_folded_and_what_was_done_keeps_its_room() -> None:
    spans = [
        span("run", "r", 0, 7_300),
        span("turn", "r/1", 0, 2, "r"),
        span("wait", "w", 2, 7_298, "r", name="person", reason="it waited"),
        span("turn", "r/2", 7_298, 7_300, "r"),
    ]
    drawn = lay_out(spans, at(7_300))
    assert [(fold.x, fold.width, fold.label) for fold in drawn.folds] == [(470, 60, "2 h 1 m")]
    assert [(row.x, row.width) for row in drawn.rows] == [(0, 1000), (0, 470), (470, 60), (530, 470)]
    assert all(not 470 < tick.x < 530 for tick in drawn.ticks)


def test_the_wait_of_a_call_is_idle_time_too() -> None:
    spans = [
        span("run", "r", 0, 1_000),
        span("turn", "r/1", 0, 1, "r"),
        span("call", "c", 1, 1_000, "r/1"),
        span("wait", "w", 1, 999, "c", name="person"),
    ]
    assert len(lay_out(spans, at(1_000)).folds) == 1


def test_ticks_are_round_and_few() -> None:
    for seconds in (0.001, 0.02, 0.9, 3, 59, 3_600, 90_000, 9_000_000):
        ticks = lay_out([span("turn", "t", 0, seconds)], at(seconds)).ticks
        assert 2 <= len(ticks) <= 12, seconds
        assert [tick.x for tick in ticks] == sorted({tick.x for tick in ticks})


def test_what_lasts_reaches_to_now() -> None:
    rows = lay_out([span("run", "r", 0, None, state="streaming"), span("turn", "r/1", 1, None, "r")], at(2)).rows
    assert [(row.x, row.width, row.lasts) for row in rows] == [(0, 1000, True), (500, 500, True)]


def test_a_dead_attempt_breaks_off_with_the_name_of_its_worker() -> None:
    spans = [span("turn", "t", 0, 10), span("attempt", "a", 0, 5, "t", state="lost", worker="host-1")]
    drawn = lay_out(spans, at(10))
    assert (drawn.rows[1].label, drawn.rows[1].broken) == ("worker host-1 died", True)
    assert draw(drawn).count('class="wf-break"') == 1


def test_purchases_of_unknown_outcome_are_marked() -> None:
    picture = draw(lay_out([span("turn", "t", 0, 10, unknown=1)], at(10)))
    assert "wf-unknown" in picture
    assert "1 purchase of unknown outcome" in picture


def test_a_bar_that_is_too_thin_has_a_mark_of_three_pixels() -> None:
    picture = draw(lay_out([span("turn", "r", 0, 100), span("call", "c", 50, 50.001, "r")], at(100)))
    assert re.search(r'class="[^"]*wf-thin" x="50%" y="\d+" width="3"', picture)


def test_waits_are_hatched_and_say_why() -> None:
    picture = draw(lay_out([span("wait", "w", 0, 5, name="lane", reason="the lane is closed")], at(5)))
    assert 'fill="url(#wf-hatch)"' in picture
    assert "waits for its provider · 5.0 s · the lane is closed" in picture


def test_the_picture_has_no_styles_and_no_markup_of_others() -> None:
    evil = "</title><script>alert(1)</script>\u202e"
    picture = draw(lay_out([span("call", 'a"b', 0, 1, name=evil, reason=evil, worker=evil)], at(1)))
    assert "<script" not in picture
    assert "style" not in picture
    assert "\u202e" not in picture


def test_more_rows_than_a_person_reads_are_counted_instead() -> None:
    spans = [span("turn", f"t{number}", number, number + 1) for number in range(MOST_ROWS + 7)]
    drawn = lay_out(spans, at(1_000))
    assert (len(drawn.rows), drawn.left_out) == (MOST_ROWS, 7)


def test_nothing_is_drawn_of_nothing() -> None:
    assert lay_out([], at(0)).rows == ()
