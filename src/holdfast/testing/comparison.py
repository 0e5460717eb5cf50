"""Comparing what came of a test's body with and without a crash."""

from __future__ import annotations

import difflib
import pprint
from typing import Any, Generic, TypeVar

from holdfast.agents import queries
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.testing.bought import every_run
from holdfast.testing.lab import Lab

T = TypeVar("T")


class Outcomes(Generic[T]):
    """What a body returned, or, if that is nothing, how the runs of its lab ended."""

    def __init__(self, returned: T, lab: Lab) -> None:
        self.returned = returned
        self.came: Any = lab.look(_ends) if returned is None else returned


def check_same(first: Outcomes[Any], now: Outcomes[Any]) -> None:
    """`AssertionError`, with the difference, when a crash made one."""
    __tracebackhide__ = True
    if first.came != now.came:
        lines = difflib.ndiff(pprint.pformat(first.came).splitlines(), pprint.pformat(now.came).splitlines())
        raise AssertionError("\n".join(["a crash changes what comes out (- without it, + with it):", *lines]))


def check_bought(lab: Lab, *, scripted: bool) -> None:
    """`AssertionError` when an answer that was recorded was bought again."""
    __tracebackhide__ = True
    if scripted and (found := lab.rebought):
        lines = [
            f"  run {each.run}, turn {each.turn}: bought {each.bought} times, {each.recorded} recorded, "
            f"{each.unknown} of unknown outcome"
            for each in found
        ]
        raise AssertionError("\n".join(["an answer was bought more often than can be explained:", *lines]))


async def _ends(database: Database) -> list[tuple[Any, ...]]:
    """How every run ended and what it called; in an order that does not depend on when."""
    found: list[tuple[Any, ...]] = []
    for run in await every_run(database):
        calls = await database.transact(queries.list_calls, run.id)
        called = [(call.name, call.input, call.state) for call in calls]
        text = (codec.decode(run.output) or {}).get("text")
        found.append((run.agent_name, run.input, run.state, run.outcome, text, called))
    return sorted(found, key=repr)
