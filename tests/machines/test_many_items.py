"""Loops over many items: what they may be, and what they cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.machines.family import LaunchLimit
from holdfast.testing import Labs
from tests.machines.conftest import WriteMachine
from tests.machines.test_execution import result

LOOP = """
start:
  foreach: input.items
  launch: child
  on_error: no
  output_to_context: {refused: "{{ output.refused }}"}
  transitions: [{to: done}]
done: {type: final, output: {refused: context.refused}}
no: {type: final, output: {error: context.error}}
"""


class Capped:
    def on_launch(self, names: Sequence[str], context: dict[str, Any]) -> LaunchLimit:
        return LaunchLimit("own_process.few", 3)


@pytest.mark.long
async def test_launches_that_a_cap_refuses_take_no_memory(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    """Each has a copy of its machines with it, but those that are dropped are not made."""
    child = write("child", "start: {type: final}")
    child.write_text(child.read_text() + f"# {'x' * 60_000}\n")
    path, lab = write("m", LOOP), await labs.use(hf)
    tracemalloc.start()
    try:
        assert await result(hf, lab, path, Capped(), {"items": [0] * 1_000}) == {"refused": 997}
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert len(await hf.jobs.list(queue="own_process.few")) == 3


async def test_a_loop_has_an_end(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    write("child", "start: {type: final}")
    said = await result(hf, await labs.use(hf), write("m", LOOP), None, {"items": [0] * 100_001})
    assert "100,000" in said["error"]
