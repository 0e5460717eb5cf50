"""Cache markers: few, in the right places, and nothing else changed."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import Request, with_breakpoints
from holdfast.models.prompt_cache import MOST, lasts_an_hour, markers
from holdfast.models.protocol import canonical, unmarked
from tests.models.conftest import WEATHER, request_of

SYSTEM = [{"type": "text", "text": "You are a guide."}, {"type": "text", "text": "Be short."}]


def places(request: Request) -> list[str]:
    """Where the markers are."""
    parts: list[tuple[str, Any]] = [("tools", request.tools), ("system", request.system)]
    parts += [(f"messages.{number}", message["content"]) for number, message in enumerate(request.messages)]
    return [f"{name}.{at}" for name, blocks in parts for at, block in enumerate(blocks) if "cache_control" in block]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_the_fixed_part_and_the_end_are_marked() -> None:
    assert places(with_breakpoints(request_of("hi", system=SYSTEM, tools=[WEATHER]))) == ["system.1", "messages.0.0"]
    assert places(with_breakpoints(request_of("hi", tools=[WEATHER, {**WEATHER, "name": "b"}]))) == [
        "tools.1",
        "messages.0.0",
    ]
    assert places(with_breakpoints(request_of("hi"))) == ["messages.0.0"]


def test_a_tool_that_is_loaded_later_takes_no_marker() -> None:
    later = {**WEATHER, "name": "b", "defer_loading": True}
    assert places(with_breakpoints(request_of("hi", tools=[WEATHER, later]))) == ["tools.0", "messages.0.0"]


def test_thinking_and_empty_text_are_passed_over() -> None:
    thinking = {"type": "thinking", "thinking": "x", "signature": "s"}
    unknown = {"type": "hologram"}
    request = request_of("a", [text("b"), thinking], [text(""), unknown])
    assert places(with_breakpoints(request)) == ["messages.0.0", "messages.1.0"]


def test_where_the_request_before_ended_is_marked_again() -> None:
    turns: list[Any] = ["a", [text("calls")], [text(f"{n}") for n in range(50)], [text("more")], "end"]
    marks = [places(with_breakpoints(request_of(*turns[:count], system=SYSTEM))) for count in (1, 3, 5)]
    assert marks == [
        ["system.1", "messages.0.0"],
        ["system.1", "messages.0.0", "messages.2.49"],
        ["system.1", "messages.2.49", "messages.4.0"],
    ]


def lives(request: Request) -> list[str]:
    return [block["cache_control"].get("ttl", "5m") for block in markers(request.body())]


def test_entries_may_live_an_hour() -> None:
    request = request_of("a", [text("b")], "c", system=SYSTEM, tools=[WEATHER])
    assert lives(with_breakpoints(request)) == ["5m", "5m", "5m"]
    hourly = with_breakpoints(request, hour=True)
    assert lives(hourly) == ["1h", "1h", "1h"]
    assert hourly.body()["system"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert (lasts_an_hour(hourly), lasts_an_hour(with_breakpoints(request))) == (True, False)


def test_no_longer_life_comes_after_a_shorter_one() -> None:
    """The provider refuses that, and the caller's own markers stay as they are."""
    short, long = ({**text("x"), "cache_control": {"type": "ephemeral", **ttl}} for ttl in ({}, {"ttl": "1h"}))
    assert lives(with_breakpoints(request_of([long, text("end")], system=SYSTEM))) == ["1h", "1h", "5m"]
    assert lives(with_breakpoints(request_of([short, text("end")], system=SYSTEM), hour=True)) == ["1h", "5m", "5m"]


def test_markers_of_the_callers_own_stay_and_count() -> None:
    marked = {**text("x"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    request = with_breakpoints(request_of([marked, marked, marked, marked, text("end")], system=SYSTEM))
    assert places(request) == [f"messages.0.{at}" for at in range(4)]
    request = with_breakpoints(request_of([marked, marked, marked, text("end")], system=SYSTEM))
    assert places(request) == ["system.1", "messages.0.0", "messages.0.1", "messages.0.2"]
    own = with_breakpoints(request_of([text("a"), marked], system=SYSTEM))
    assert own.messages[0]["content"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


blocks = st.sampled_from(
    [text("words"), text(""), {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "image", "source": {}}]
)
contents = st.one_of(st.just("text"), st.lists(blocks, min_size=1, max_size=30))


@given(st.lists(contents, min_size=1, max_size=6), st.booleans())
def test_nothing_else_changes_and_a_turn_is_a_prefix_of_the_next(turns: list[Any], with_system: bool) -> None:
    request = request_of(*turns, system=SYSTEM if with_system else [], tools=[WEATHER])
    before = copy.deepcopy(request)
    marked = with_breakpoints(request)
    assert request == before
    assert len(places(marked)) <= MOST
    longer = with_breakpoints(request_of(*turns, "one more", system=request.system, tools=[WEATHER]))
    shown, next_shown = (canonical(unmarked(list(each.messages))) for each in (marked, longer))
    assert next_shown.startswith(shown.removesuffix("]"))
    assert unmarked(list(marked.system)) == list(request.system)
