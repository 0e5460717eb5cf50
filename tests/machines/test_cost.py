"""What states cost, counted in statements: each is stored once, by a statement that commits by itself."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing import Labs
from tests.machines.conftest import WriteMachine
from tests.support.sent import Statements

LOOP = """
start: {type: initial, transitions: [{to: count}]}
count:
  action: count
  output_to_context: {n: "{{ output.n }}"}
  transitions:
    - condition: "context.n < input.n"
      to: between
    - to: done
between: {transitions: [{to: count}]}
done: {type: final, output: {n: context.n}}
"""
EACH = """
start: {action: count, foreach: "{{ range(input.n) }}", transitions: [{to: done}]}
done: {type: final}
"""


class Counting:
    def on_action(self, action: str, context: dict[str, Any]) -> dict[str, Any]:
        return {"n": context.get("n", 0) + 1}


class Watching(Counting):
    def on_state_enter(self, state: str, context: dict[str, Any]) -> None: ...

    def on_state_exit(self, state: str, context: dict[str, Any], output: Any) -> None: ...


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch, dialect: str) -> Statements:
    return Statements(monkeypatch, dialect)


@pytest.mark.parametrize(
    "case",
    [(LOOP, Counting, 1), (LOOP, Watching, 5), (EACH, Counting, 1)],
    ids=["an action, and a state without one", "with hooks", "an item"],
)
async def test_what_is_done_is_stored_by_one_statement(
    hf: Holdfast, labs: Labs, write: WriteMachine, statements: Statements, case: tuple[str, type, int]
) -> None:
    states, hooks, each = case
    lab = await labs.use(hf)
    machine = hf.machine(write("m", states), hooks=hooks)
    spent: dict[int, dict[str, int]] = {}
    for count in (5, 15):
        execution = await machine.enqueue({"n": count})
        statements.clear()
        await lab.drain()
        spent[count] = dict(statements.sent)
        await execution.result()
    grown = {name: spent[15].get(name, 0) - spent[5].get(name, 0) for name in spent[15]}
    assert {name: more for name, more in grown.items() if more >= 10} == {"store_step": 10 * each}
