"""`install()`: lets programs import `universal_agent…` and get this interface.

It refuses to stand in front of a package of that name that is installed: which of the two a program meant is not ours
to guess.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Literal

from holdfast.errors import UsageError
from holdfast.facades.universal_agent import gateway, runtime_db, state, worker_pool
from holdfast.facades.universal_agent.runtime_db import DefineAgent, define_agents_by

# The tool ledger's replay policies, as the effects of Holdfast's tools.
#
# What may happen again after a crash is decided by a tool's effect, in one place; a policy is another word for it.


Effect = Literal["read", "idempotent", "once"]

REPLAY_EXACT = "REPLAY_EXACT"  # a recorded result is returned; a call of unknown outcome waits for a person
REPLAY_IDEMPOTENT = "REPLAY_IDEMPOTENT"  # it may be called again, with the same key
RELAUNCH = "RELAUNCH"  # it is simply called again

EFFECTS: dict[str, Effect] = {REPLAY_EXACT: "once", REPLAY_IDEMPOTENT: "idempotent", RELAUNCH: "read"}


def effect_of(policy: str) -> Effect:
    """What to give to `@hf.tool(effect=…)` for a policy."""
    if policy not in EFFECTS:
        raise UsageError(f"a replay policy must be one of {', '.join(EFFECTS)}; got {str(policy)[:80]!r}.")
    return EFFECTS[policy]


NAME = "universal_agent"
_MADE_BY = "__holdfast_facade__"


def install(agent: DefineAgent | None = None) -> None:
    """Register the module names that the document imports; again, it changes only `agent`.

    `agent` defines the agent that handles prompts, on the app of each connection that is opened from now on:
    `install(lambda hf: hf.agent("universal_agent", model="…", tools=[…]))`.
    """
    known = sys.modules.get(NAME)
    if known is None and importlib.util.find_spec(NAME) is not None:
        raise UsageError(
            f"a package named {NAME} is installed here; uninstall it first, or import {__package__} itself."
        )
    if known is not None and not hasattr(known, _MADE_BY):
        raise UsageError(f"a package named {NAME} has been imported here; import {__package__} itself.")
    define_agents_by(agent)
    if known is None:
        _register()


def uninstall() -> None:
    """Take the names away again, as far as `install` registered them."""
    if hasattr(sys.modules.get(NAME), _MADE_BY):
        for name in [each for each in sys.modules if each == NAME or each.startswith(f"{NAME}.")]:
            del sys.modules[name]
    define_agents_by(None)


def _register() -> None:
    durable = _module(f"{NAME}.durable", state, worker_pool)
    modules = {
        NAME: _module(NAME),
        f"{NAME}.durable": durable,
        f"{NAME}.durable.worker_pool": worker_pool,
        f"{NAME}.durable.state": state,
        f"{NAME}.durable.db": _module(f"{NAME}.durable.db", runtime_db, names=("connect_runtime_db",)),
        f"{NAME}.gateway": gateway,
    }
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)


def _module(name: str, *parts: ModuleType, names: tuple[str, ...] | None = None) -> ModuleType:
    """A package that has the names of these modules."""
    made = ModuleType(name, "Universal Agent's names, served by Holdfast.")
    made.__path__ = []
    setattr(made, _MADE_BY, True)
    for part in parts:
        for each in part.__all__ if names is None else names:
            setattr(made, each, getattr(part, each))
    return made
