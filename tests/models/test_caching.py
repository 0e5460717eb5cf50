"""Cache markers: few, in the right places, and nothing else changed."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import Request, with_breakpoints
from holdfast.models.caching import MOST
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
    assert places(with_breakpoints(request)) == ["messages.1.0"]


def test_a_long_turn_gets_one_more_within_reach_of_the_last() -> None:
    short = request_of([text(f"{n}") for n in range(20)])
    assert places(with_breakpoints(short)) == ["messages.0.19"]
    long = request_of("a", [text(f"{n}") for n in range(50)], system=SYSTEM)
    system, between, end = places(with_breakpoints(long))
    assert (system, end) == ("system.1", "messages.1.49")
    assert 15 <= 49 - int(between.removeprefix("messages.1.")) < 20


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
