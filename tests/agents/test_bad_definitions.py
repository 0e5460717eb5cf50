"""Agents and tools that are defined wrongly are refused where they are defined, not where they first fail."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.app import core_of
from holdfast.errors import UsageError

HERE = "sqlite:///never.db"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", "x", "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_tokens", 10**9, "it writes between 1 and"),
        ("attempts", 0, "attempts"),
        ("attempts", "x", "attempts"),
        ("limits", {"turns": 3}, r"limits must be Limits\(…\)"),
        ("limits", "x", r"limits must be Limits\(…\)"),
        ("on_max_tokens", "bogus", "on_max_tokens must be"),
        ("instructions", None, "instructions"),
        ("description", None, "description"),
        ("options", [1], "options"),
        ("metadata", [1], "metadata must be a dict"),
        ("output", 5, "output must be a type"),
        ("output", {"type": "object"}, "output must be a type"),
        ("priority", "x", "priority"),
        ("priority", 2**40, "priority"),
        ("queue", "", "a queue name"),
        ("queue", 5, "queue"),
        ("requires", "gpu", "requires must be a list"),
        ("requires", [5], "requires must be"),
        ("tools", "weather", "a tool must be"),
        ("tool_search", "x", "tool_search must be"),
        ("caching", "yes", "caching"),
    ],
)
def test_an_agent_is_checked_when_it_is_defined(field: str, value: Any, words: str) -> None:
    hf = Holdfast(HERE)
    with pytest.raises(UsageError, match=words):
        hf.agent("desk", **{"model": "claude-opus-5-5", field: value})
    assert core_of(hf).defined == {}


async def test_a_stored_agent_is_checked_too(hf: Holdfast) -> None:
    wrong: list[dict[str, Any]] = [{"attempts": 0}, {"priority": 2**40}, {"max_tokens": 10**9}]
    for fields in wrong:
        with pytest.raises(UsageError, match=next(iter(fields))):
            await hf.agents.create("desk", model="claude-opus-5-5", **fields)
    assert await hf.agents.list() == []


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("isolate", "thread", 'isolate must be "process"'),
        ("approve", "yes", "approve must be"),
        ("approve", 5, "approve must be"),
        ("retry", 3, r"retry must be Retry\(…\)"),
        ("requires", "gpu", "requires must be a list"),
        ("priority", "x", "priority"),
        ("queue", 5, "a queue name"),
        ("concurrency", 0, "concurrency"),
        ("concurrency", "x", "concurrency"),
        ("timeout", 5, "a duration"),
        ("name", 5, "not a valid tool name"),
    ],
)
def test_a_tool_is_checked_when_it_is_declared(field: str, value: Any, words: str) -> None:
    hf = Holdfast(HERE)

    def weather(city: str) -> str:
        """The weather."""
        return city

    with pytest.raises(UsageError, match=words):
        hf.tool(**{field: value})(weather)
    assert core_of(hf).registry.definitions == {}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("isolate", "thread", 'isolate must be "process"'),
        ("retry", 3, r"retry must be Retry\(…\)"),
        ("requires", "gpu", "requires must be a list"),
        ("priority", "x", "priority"),
        ("priority", 2**40, "priority"),
    ],
)
def test_a_job_is_checked_when_it_is_declared(field: str, value: Any, words: str) -> None:
    hf = Holdfast(HERE)

    def work() -> None: ...

    with pytest.raises(UsageError, match=words):
        hf.job(**{field: value})(work)


def test_what_is_right_is_taken() -> None:
    hf = Holdfast(HERE)

    @hf.tool(retry=Retry(attempts=2), requires=["tag:gpu=yes"], approve=lambda call: bool(call.input))
    def paint(color: str) -> str:
        """Paint."""
        return color

    agent = hf.agent("painter", model="claude-opus-5-5", tools=[paint], max_tokens=128_000, requires=["tag:gpu=yes"])
    assert agent.spec.requires == ("tag:gpu=yes",)
    assert hf.agent("free", model="scripted:", max_tokens=10**6, output=list[int]).spec.max_tokens == 10**6
