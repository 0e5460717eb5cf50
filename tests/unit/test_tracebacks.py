"""Tracebacks: the user's lines stay, the frames of Holdfast are folded, and the size is bounded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import durations
from holdfast.errors import BadSetting, RunFailed
from holdfast.kernel import codec
from holdfast.text import LIMIT, traceback_of, with_traceback

MINE = "this is the line that the user wants to see"


def of(function: Callable[[], Any]) -> str:
    try:
        function()
    except BaseException as problem:  # noqa: BLE001  whatever it raises
        return traceback_of(problem)
    raise AssertionError


def test_our_frames_are_one_line() -> None:
    text = of(lambda: durations.duration(MINE))
    assert text.count("frames of holdfast") == 1
    assert "durations.py" not in text
    assert "durations.duration(MINE)" in text
    assert text.splitlines()[-1].startswith("holdfast.errors.BadSetting: ")


def test_a_fault_of_our_own_is_not_folded_away() -> None:
    with pytest.raises(TypeError) as caught:
        durations.show("x")  # type: ignore[arg-type]  # that is the fault
    of_ours = caught.value.with_traceback(caught.tb.tb_next)
    assert "durations.py" in traceback_of(of_ours)


def test_a_refusal_of_ours_needs_no_frames() -> None:
    with pytest.raises(BadSetting) as caught:
        durations.duration("x")
    of_ours = caught.value.with_traceback(caught.tb.tb_next)
    assert "durations.py" not in traceback_of(of_ours)
    assert "holdfast.errors.BadSetting: 'x' is not a duration" in traceback_of(of_ours)


def test_the_users_frame_survives_a_deep_library() -> None:
    value: Any = object()
    for _ in range(200):
        value = [value]

    def mine() -> None:
        json.dumps(value, indent=1, default=_refuse)  # this is the line that the user wants to see

    text = of(mine)
    assert MINE in text
    assert "frames of libraries" in text or len(text) < LIMIT
    assert len(text.encode()) <= LIMIT


def _refuse(value: object) -> object:
    raise TypeError(f"no {value!r}")


def test_two_functions_that_call_each_other_for_ever_fit() -> None:
    def ping(n: int) -> int:
        return pong(n + 1)

    def pong(n: int) -> int:
        return ping(n + 1)

    text = of(lambda: ping(0))
    assert len(text.encode()) <= LIMIT
    assert "left out" in text
    assert text.splitlines()[-1].startswith("RecursionError")


def test_a_long_message_does_not_push_the_frames_out() -> None:
    def mine() -> None:
        raise ValueError("x" * 1_000_000)  # this is the line that the user wants to see

    text = of(mine)
    assert MINE in text
    assert len(text.encode()) <= LIMIT


def test_a_chain_of_many_causes_and_a_group_of_many_are_bounded() -> None:
    def chained(n: int) -> None:
        try:
            if n:
                chained(n - 1)
            else:
                raise KeyError("first")
        except Exception as problem:
            raise ValueError(f"{n} " + "y" * 5_000) from problem

    def grouped() -> None:
        raise ExceptionGroup("many", [ValueError("z" * 5_000) for _ in range(100)])

    for text in (of(lambda: chained(50)), of(grouped)):
        assert text.count("Traceback") <= 8
        assert len(text.encode()) <= LIMIT
        assert text.startswith(("Traceback", "  + Exception Group Traceback"))


def test_what_is_left_out_of_a_group_or_a_chain_is_said() -> None:
    def grouped(n: int) -> None:
        raise ExceptionGroup("many", [ValueError(f"number {each}") for each in range(n)])

    def chained(n: int) -> None:
        try:
            chained(n - 1) if n else None
        finally:
            raise ValueError(f"number {n}")

    text, whole, chain, whole_chain = (
        of(each) for each in (lambda: grouped(12), lambda: grouped(7), lambda: chained(8), lambda: chained(7))
    )
    assert [n for n in range(12) if f"number {n}\n" in text] == list(range(7))
    assert "| … and 5 more\n" in text
    assert "… and" not in whole
    assert "… and what came before it\n" in chain
    assert "… and" not in whole_chain


def test_a_stored_traceback_loses_its_middle_not_its_end() -> None:
    text = "begin\n" + "middle ü\n" * 1_000 + "the end"
    for cap in (50, 1_000, 5_000):
        kept = codec.clip_middle(text, cap)
        assert kept.startswith("begin")
        assert kept.endswith("the end")
        assert len(kept.encode()) <= cap + 10
    assert codec.clip_middle(text, 100_000) == text


@pytest.mark.parametrize("trace", [None, ""])
def test_without_a_traceback_there_is_no_note(trace: str | None) -> None:
    assert not hasattr(with_traceback(RunFailed("1", "failed", "x"), "job 1", trace), "__notes__")
