"""The simulated prompt cache bills as the provider does: by prefix, marker, reach, least size and lifetime."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models import Request, with_breakpoints
from holdfast.models.prompt_cache import PromptCache
from holdfast.models.wire import count_tokens
from holdfast.testing.clock import LabClock
from tests.models.conftest import request_of

LONG = "word " * 2_000
SYSTEM = [{"type": "text", "text": LONG}]
MARK = {"cache_control": {"type": "ephemeral"}}


def results(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": f"result {number} " + "x" * 200, **more} for number in range(count)]


class Bill:
    """A cache, and what it has billed."""

    def __init__(self) -> None:
        self.clock = LabClock()
        self.cache = PromptCache(self.clock)

    def __call__(self, request: Request, account: str = "") -> tuple[int, int, int]:
        """Tokens that are new, written and read."""
        body = request.body()
        usage = self.cache.bill(body, count_tokens(body), account)
        split = usage["cache_creation"]
        new, written, read = (usage[f"{kind}input_tokens"] for kind in ("", "cache_creation_", "cache_read_"))
        assert new + written + read == count_tokens(body)
        assert split["ephemeral_5m_input_tokens"] + split["ephemeral_1h_input_tokens"] == written
        return new, written, read


def marked(*messages: Any, hour: bool = False, **more: Any) -> Request:
    return with_breakpoints(request_of(*messages, **{"system": SYSTEM, **more}), hour=hour)


@pytest.mark.parametrize("parallel", [1, 19, 20, 25, 60])
def test_each_turn_reads_all_that_the_one_before_wrote(parallel: int) -> None:
    """However many calls a turn has: the provider looks back 20 blocks only."""
    bill = Bill()
    turns: list[Any] = ["go", results(parallel), results(parallel), results(parallel), results(parallel), "end"]
    before = 0
    for count in (1, 3, 5):
        _, written, read = bill(marked(*turns[:count]))
        assert (read, written > 0) == (before, True)
        before = read + written


def test_without_a_marker_where_the_last_one_ended_nothing_is_found_beyond_reach() -> None:
    bill = Bill()
    first = request_of([{**results(1)[0], **MARK}], system=SYSTEM)
    _, written, _ = bill(first)
    near = request_of([*results(1), *results(19)[:18], {**results(1)[0], **MARK}], system=SYSTEM)
    assert bill(near)[2] == written
    bill = Bill()
    bill(first)
    far = request_of([*results(1), *results(19), {**results(1)[0], **MARK}], system=SYSTEM)
    assert bill(far)[2] == 0


def test_what_is_read_is_the_same_to_the_last_character() -> None:
    bill = Bill()
    _, written, _ = bill(marked("hello"))
    assert bill(marked("hello"))[2] == written
    assert 0 < bill(marked("hallo"))[2] < written  # the system prompt is the same
    assert bill(marked("hello", system=[{"type": "text", "text": LONG + "."}]))[2] == 0
    assert bill(marked("hello", model="claude-opus-5-5"))[2] == 0
    assert bill(marked("hello"), account="another")[2] == 0


def test_a_short_prompt_is_not_cached() -> None:
    bill = Bill()
    for _ in range(2):
        new, written, read = bill(marked("hello", system=[]))
        assert (written, read) == (0, 0)
        assert new > 0


@pytest.mark.parametrize(("hour", "lives", "dies"), [(False, "4m", "5m"), (True, "59m", "1h")])
async def test_an_entry_lives_as_long_after_each_reading(hour: bool, lives: str, dies: str) -> None:
    bill = Bill()
    _, written, _ = bill(marked("hello", hour=hour))
    for _ in range(3):
        await bill.clock.advance(lives)
        assert bill(marked("hello", hour=hour))[2] == written
    await bill.clock.advance(dies)
    assert bill(marked("hello", hour=hour))[1:] == (written, 0)


def test_what_lives_an_hour_is_written_as_such() -> None:
    body = marked("hello", hour=True).body()
    usage = Bill().cache.bill(body, count_tokens(body))
    assert usage["cache_creation"] == {
        "ephemeral_5m_input_tokens": 0,
        "ephemeral_1h_input_tokens": usage["cache_creation_input_tokens"],
    }
