"""Hooks: what a program does in the states of a machine, found by the names under which it registers them.

Each method may be plain or async, and plain ones run on threads. `on_action` takes `(action, context)` or, as later
releases of FlatAgents have it, `(state, action, context)`. Hooks that a program does not define are not called at all.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.machines.graph import MachineGraph
from holdfast.machines.problems import Findings
from holdfast.validation import did_you_mean

log = logging.getLogger("holdfast.machines")

METHODS = (
    "on_machine_start",
    "on_machine_end",
    "on_state_enter",
    "on_state_exit",
    "on_transition",
    "on_error",
    "on_action",
    "on_launch",
    "on_launched",
    "on_attempt_start",
    "on_attempt_end",
    "on_stopping",
    "on_stopped",
)
DEFAULT = "default"  # the hooks of machines that name none


class MachineHooks:
    """Derive from this, or from nothing: define those of the methods that you need.

    - `on_machine_start(context)` and `on_state_enter(state, context)` return what to put into the context.
    - `on_action(action, context)` returns the action's output, a mapping.
    - `on_state_exit(state, context, output)` and `on_machine_end(context, output)` may return another output.
    - `on_transition(state, to, context)` may return another state to go to.
    - `on_error(state, error, context)` may return a state that takes the error; its text is in `context["error"]`.
    - `on_launch(names, context)` may return a `LaunchLimit`: how many of the machines to launch may start, where.
    - `on_launched(execution_ids, queue, url)` is called when they are stored there, to start processes for them.
    - `on_attempt_start(execution_id, machine, input)` and `on_attempt_end(execution_id, how)` are called in every
      process that plays an execution, not once. `how` is "ended", "failed", "parked", "interrupted", or "left": the
      process exits, and the execution waits for another one.
    - `on_stopping()` and `on_stopped()` are called in a process that SIGTERM or SIGINT stops: before it hands back what
      it plays, and after that.
    """


class NoSuchAction(Exception):
    """No hooks of a state have an `on_action`."""


class HookRegistry:
    """The hooks of a program, by name: classes, functions that make them, or objects."""

    def __init__(self, given: Any = None) -> None:
        self._made: dict[str, Any] = {}
        self._sets: dict[tuple[str, ...], HookSet] = {}
        if isinstance(given, Mapping):
            self._given = {str(name): hooks for name, hooks in given.items()}
        else:
            listed = list(given) if isinstance(given, Sequence) else [] if given is None else [given]
            self._given = {_name_of(hooks): hooks for hooks in listed}
            if len(self._given) < len(listed):
                raise UsageError("two of these hooks have the same name: give a mapping of names to hooks.")
            if len(listed) == 1:
                self._given.setdefault(DEFAULT, listed[0])

    def check(self, machine: MachineGraph, found: Findings) -> None:
        """Add what a machine names and the program has not registered, and actions that nobody could do."""
        specs = [*machine.hooks, *machine.lifecycle]
        for state in machine.states.values():
            specs += state.hooks or ()
            if state.action is not None and not self._given:
                at = state.where("action")
                found.add(at, f"{state.name!r} has action {state.action!r}, and no hooks are registered to do it.")
        for spec in specs:
            if spec.name not in self._given:
                found.unknown(spec.at, "registered hooks called", spec.name, self._given)

    def of(self, machine: MachineGraph, state: str | None) -> HookSet:
        """The hooks of a state, or with None those of the start and the end."""
        own = machine.states[state].hooks if state is not None else None
        specs = machine.hooks if own is None else own
        if state is None:
            specs = (*machine.hooks, *machine.lifecycle)
        named = [(spec.name, spec.args) for spec in specs]
        if not named:
            named = [(name, ()) for name in ([DEFAULT] if DEFAULT in self._given else self._given)]
        key = tuple(_key(name, args) for name, args in named)
        if key not in self._sets:
            self._sets[key] = HookSet([self._one(name, args) for name, args in named])
        return self._sets[key]

    def used(self) -> HookSet:
        """The hooks that have been used in this process."""
        return HookSet(list(self._made.values()))

    def _one(self, name: str, args: tuple[tuple[str, Any], ...]) -> Any:
        if name not in self._given:
            raise UsageError(f"there are no registered hooks called {name!r}.{did_you_mean(name, self._given)}")
        key = _key(name, args)
        if key not in self._made:
            given = self._given[name]
            self._made[key] = given(**dict(args)) if isinstance(given, type) or _makes(given) else given
        return self._made[key]


class HookSet:
    """The hooks of one state, in order."""

    def __init__(self, hooks: Sequence[Any]) -> None:
        self._hooks = hooks
        self.methods = frozenset(name for name in METHODS for each in hooks if _has(each, name))
        doing = [getattr(each, "on_action", each if callable(each) else None) for each in hooks]
        self._able = [(method, _takes(method, 3)) for method in doing if method is not None]

    async def action(self, state: str, action: str, context: dict[str, Any]) -> Any:
        """The output of the first hooks that give one for this action."""
        if not self._able:
            raise NoSuchAction(f"no hooks are registered to do action {action!r} of state {state!r}.")
        output: Any = None
        for method, takes_state in self._able:
            output = await _call(method, *([state] if takes_state else []), action, context)
            if output is not None and output is not context:
                break
        return output

    async def fold(self, method: str, *args: Any, value: Any) -> Any:
        """Call a method of all hooks; each that returns something changes the value that the next one is given."""
        for each in self._hooks:
            if _has(each, method):
                changed = await _call(getattr(each, method), *args, value)
                value = value if changed is None else changed
        return value

    async def each(self, method: str, *args: Any) -> None:
        """Call a method of all hooks, and log what one of them raises."""
        for each in self._hooks:
            if _has(each, method):
                try:
                    await _call(getattr(each, method), *args)
                except Exception:
                    log.exception("%s of %s has failed", method, _name_of(each))

    async def first(self, method: str, *args: Any) -> Any:
        """What the first hooks that answer say."""
        for each in self._hooks:
            if _has(each, method) and (answer := await _call(getattr(each, method), *args)) is not None:
                return answer
        return None


async def _call(method: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(*args)
    result = await asyncio.to_thread(method, *args)
    return await result if inspect.isawaitable(result) else result


def _has(hooks: Any, method: str) -> bool:
    return callable(getattr(hooks, method, None)) or (method == "on_action" and inspect.isroutine(hooks))


def _takes(method: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _makes(given: Any) -> bool:
    """A function that makes hooks is marked by having no parameters, or none without a default."""
    if not inspect.isroutine(given):
        return False
    parameters = inspect.signature(given).parameters.values()
    return all(each.default is not each.empty or each.kind is each.VAR_KEYWORD for each in parameters)


def _key(name: str, args: tuple[tuple[str, Any], ...]) -> str:
    return f"{name} {args!r}" if args else name


def _name_of(hooks: Any) -> str:
    return str(getattr(hooks, "__name__", type(hooks).__name__))


# The program that plays a machine, for hooks that start processes of it.


class Program(NamedTuple):
    url: str  # of the store that has the execution
    app: str | None = None  # MODULE:APP, if the program is known by that


playing: ContextVar[Program | None] = ContextVar("the program that plays a machine", default=None)
