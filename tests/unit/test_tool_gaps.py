"""A tool that leaves the model guessing is named when a worker starts, and by no other command."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.tools import ToolContext
from holdfast.cli.introduction import ProcessNumber, introduce
from holdfast.workers.role import Role


async def test_a_tool_without_docstring_or_types_is_named_with_what_the_model_will_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hf = Holdfast("sqlite://:memory:")

    def weather(city, unit: str = "c", *, days=1):  # type: ignore[no-untyped-def]  # that is the point
        return city

    hf.tool(weather)
    assert caplog.records == [], "most commands import the program and run nothing"
    introduce(hf, Role(), ProcessNumber(2, 2))
    async with hf:
        pass
    name = f"{__name__}.{weather.__qualname__}"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"tool {name} has no docstring: the model will not know what it does or when to call it.",
        f"tool {name} has no types for city, days: the model will not know what to pass.",
    ]


def test_the_first_of_several_processes_names_it(caplog: pytest.LogCaptureFixture) -> None:
    hf = Holdfast("sqlite://:memory:")

    @hf.tool
    def weather(city: str) -> str:
        return city

    for number in (2, 1):
        introduce(hf, Role(), ProcessNumber(number, 2))
        assert ("has no docstring" in caplog.text) is (number == 1)


def test_a_tool_that_says_all_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    hf = Holdfast("sqlite://:memory:")

    @hf.tool
    def weather(ctx: ToolContext, city: str, more: Any = None) -> str:
        """The weather in a city."""
        return city

    @hf.tool
    class Clock:
        """The time in a city."""

        def run(self, city: str) -> str:
            return city

    hf.inquiries.question("ask")
    introduce(hf, Role(), ProcessNumber())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
