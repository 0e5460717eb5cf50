"""kill -9 at every checkpoint of a machine: each worker stores one event and dies, and the next continues there."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.chaos.crew import Crew, Member
from tests.chaos.doomed_machine import declare
from tests.support.apps import eventually, settings_with

pytestmark = pytest.mark.chaos

MACHINE = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: m
  states:
    start: {action: first, transitions: [{to: each}]}
    each: {foreach: "{{ range(2) }}", action: each, transitions: [{to: run}]}
    run:
      foreach: "{{ range(2) }}"
      machine: child
      output_to_context: {squares: "{{ output }}"}
      transitions: [{to: spawn}]
    spawn: {foreach: "{{ range(2) }}", launch: child, transitions: [{to: breaks}]}
    breaks: {action: breaks, on_error: {ValueError: wait}, transitions: [{to: done}]}
    wait: {wait_for: go, output_to_context: {by: "{{ output.by }}"}, transitions: [{to: done}]}
    done: {type: final, output: {squares: context.squares, by: context.by, error: context.error}}
"""
CHILD = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: child
  states:
    start: {type: final, output: {square: "{{ input.item * input.item }}"}}
"""


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_workers_that_die_after_one_checkpoint_bring_a_machine_to_its_end(
    url: str, crew: Crew, tmp_path: Path
) -> None:
    (tmp_path / "m.yml").write_text(MACHINE)
    (tmp_path / "child.yml").write_text(CHILD)
    (tmp_path / "witness").touch()
    hf = Holdfast(settings=settings_with(url=url, max_rescues=50), embedded=False)
    async with hf:
        execution = await declare(hf, tmp_path).enqueue()
        await hf.signal("go", {"by": "ann"})
        deaths = 0

        async def has_ended() -> bool:
            return (await hf.jobs.get(execution.id)).state in ("succeeded", "failed")

        while not await has_ended():
            doomed = crew.script("doomed_machine", url, tmp_path, "store_step", "after", 1)

            async def over(member: Member = doomed) -> bool:
                return not member.running or await has_ended()

            await eventually(over, partial(getattr, doomed, "output"))
            deaths += 1
            assert deaths < 40, doomed.output
        assert await execution.result() == {
            "squares": [{"square": 0}, {"square": 1}],
            "by": "ann",
            "error": "as it should",
        }
        assert deaths > 8
        done = Counter((tmp_path / "witness").read_text().splitlines())
        assert set(done.values()) == {1}, done
        assert len(done) == 4
        launched = await hf.jobs.list(kind="machine:child")
        assert len(launched) == 4
