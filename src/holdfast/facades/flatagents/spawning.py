"""Spawning: workers that an action starts, under the same admission as those that a `launch` starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.facades.flatagents.launching import found_machine
from holdfast.facades.flatagents.store import Store
from holdfast.kernel.ids import new_id
from holdfast.machines.admission import LaunchLimit, let_in
from holdfast.machines.bundle import Bundle, gather
from holdfast.machines.files import Finder, load_file
from holdfast.machines.orders import Way, first_order, new_job
from holdfast.machines.problems import Findings


def spawn(url: str, asked: LaunchLimit, machine: str, input: Mapping[str, Any], count: int, **about: Any) -> list[str]:
    """Enqueue as many of `count` workers as may start; their ids. `about` says which execution starts them."""
    bundle, store = _bundle(machine), Store(url)
    order, core = first_order(bundle, input, **about), store.core
    jobs = [new_job(new_id(core.ports), order, Way(asked.queue), core.settings) for _ in range(min(count, asked.most))]
    try:
        return store.call(store.transact(let_in, asked, jobs))
    finally:
        store.close()


def _bundle(machine: str) -> Bundle:
    found = Findings()
    bundle = gather(load_file(found_machine(machine)), Finder().find, found)
    found.raise_any()
    return bundle
