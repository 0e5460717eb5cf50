"""Holdfast's machines: one goes from state to state, one launches others, one runs a machine for each item."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.contenders.protocol import Order, async_gate, main, say
from holdfast import Holdfast
from holdfast.machines.api import Machine
from holdfast.settings import Settings

hf = Holdfast(settings=Settings())

_HEAD = 'spec: flatmachine\nspec_version: "0.8.3"\ndata:\n  name: {}\n  settings: {{max_steps: 1000000}}\n  states:\n'
_FILES = {
    "states": """
    count:
      type: initial
      action: count
      output_to_context: {n: "{{ output.n }}"}
      transitions:
        - condition: "context.n < input.n"
          to: count
        - to: done
    done: {type: final, output: {n: context.n}}
""",
    "launches": """
    launch:
      type: initial
      foreach: "{{ range(input.n) }}"
      launch: nothing
      transitions: [{to: done}]
    done: {type: final, output: {n: input.n}}
""",
    "foreach": """
    run:
      type: initial
      foreach: "{{ range(input.n) }}"
      machine: nothing
      output_to_context: {n: "{{ output | length }}"}
      transitions: [{to: done}]
    done: {type: final, output: {n: context.n}}
""",
    "nothing": "    done: {type: initial, transitions: [{to: end}]}\n    end: {type: final}\n",
}


class Hooks:
    """A plain method, as most programs have it."""

    def on_action(self, action: str, context: dict[str, Any]) -> dict[str, Any]:
        return {"n": context.get("n", 0) + 1}


def machine(name: str) -> Machine[Any]:
    with tempfile.TemporaryDirectory() as folder:
        for each, states in _FILES.items():
            (Path(folder) / f"{each}.yml").write_text(_HEAD.format(each) + states)
        return hf.machine(Path(folder) / f"{name}.yml", hooks=Hooks)


async def prepare(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await hf.migrate()


async def play(order: Order) -> None:
    """Run the machine that `what` names, with a worker in this process, until all that it started has ended."""
    hf.settings = hf.settings.override({"url": order.url})
    made = machine(order.what)
    async with hf:
        await made.run({"n": 1})  # the worker is awake, and all is loaded
        await async_gate()
        began = time.perf_counter()
        result = await made.run({"n": order.n})
        assert result == {"n": order.n}, result
        own = time.perf_counter() - began
        while any([await hf.jobs.list(state=state, limit=1) for state in ("pending", "running")]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        say("done", own=own, seconds=time.perf_counter() - began)


if __name__ == "__main__":
    main({"prepare": prepare, "play": play})
