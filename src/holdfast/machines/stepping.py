"""What follows from what in a machine: pure functions over a place in it. No I/O, no time, no chance.

A place says which state the machine is in and what is to be done there next. `effect` says how; the engine does it and
brings the outcome to `succeeded` or `failed`, which give the next place and the events that led there. The same
outcomes lead to the same places, so a machine that is replayed from its stored events continues exactly where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.machines.expressions import ExpressionError
from holdfast.machines.graph import MachineGraph, Stage, rendered
from holdfast.machines.meter import TemplateError

# What may be done in a state, in this order. Hooks take part where they say that they do.
ORDER = ("start", "enter", "wait_for", "action", "launch", "machine", "agent", "exit", "end", "transition")
HOOKED = {
    "start": "on_machine_start",
    "enter": "on_state_enter",
    "exit": "on_state_exit",
    "end": "on_machine_end",
    "transition": "on_transition",
}
_PASSING = "entering"  # what is to be done in this state is not known yet
_AFTER_LIMIT = 100  # states that may still be entered once max_steps was an error that a state took
MOST_ITEMS = 100_000

Context = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MachineEvent:
    """Something that happened to a machine. `name` is started, entered, executed, left, waiting, failed or ended."""

    name: str
    state: str
    step: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StateFailure:
    """Why a state, or the machine, failed. `classes` are the names that on_error may call it by, the nearest first."""

    classes: tuple[str, ...]
    message: str
    trace: str = ""  # where the program raised it, or where in another machine it was

    @property
    def type(self) -> str:
        return self.classes[0]


class EffectFailed(Exception):
    """What a state did has failed."""

    def __init__(self, failure: StateFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    """What `context.machine` says, beside where the machine is."""

    execution_id: str
    parent_execution_id: str | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class MachinePlace:
    """Where a machine is. `part` is to be done next; "" once it has ended, with a `result` or a `failure`."""

    state: str
    step: int
    part: str
    context: Context
    output: Any = None  # of the part that was done last, in this state
    result: Any = None
    failure: StateFailure | None = None
    over: bool = False  # max_steps was reached, and a state took the error

    @property
    def has_ended(self) -> bool:
        return not self.part


@dataclass(frozen=True, slots=True)
class StepResult:
    """The next place, and what happened on the way there."""

    to: MachinePlace
    events: tuple[MachineEvent, ...]


@dataclass(frozen=True, slots=True)
class Hook:
    """Call the hooks: `part` says which of their methods."""

    part: str
    context: Context
    output: Any = None
    to: str = ""


@dataclass(frozen=True, slots=True)
class ActionCall:
    """Call `on_action`, once, or for every item."""

    action: str
    contexts: tuple[Context, ...]
    keys: tuple[str, ...] | None
    each: bool


@dataclass(frozen=True, slots=True)
class WantedRun:
    """A machine that is to be run or launched."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunMachines:
    """Run machines, and wait for all, or for the first. `labels`: results are a mapping by these, not a list."""

    wanted: tuple[WantedRun, ...]
    labels: tuple[str, ...] | None
    single: bool
    first: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """Start machines, and do not wait for them."""

    wanted: tuple[WantedRun, ...]


@dataclass(frozen=True, slots=True)
class AskAgent:
    """Let an agent answer."""

    agent: str
    input: Any


@dataclass(frozen=True, slots=True)
class TakeSignal:
    """Take a signal."""

    channel: str


Effect = Hook | ActionCall | RunMachines | Launch | AskAgent | TakeSignal


class Stepper:
    """One machine and its input: `hooked` names the methods that its hooks have."""

    def __init__(
        self, machine: MachineGraph, input: Mapping[str, Any], about: ExecutionInfo, hooked: Iterable[str] = ()
    ) -> None:
        self._machine = machine
        self._input = dict(input)
        self._about = about
        self._hooked = frozenset(hooked)

    def begin(self) -> StepResult:
        """Its first place. What goes wrong here has no state that could take it, so the machine has failed."""
        at = MachinePlace(self._machine.initial, 1, "", {})
        events = [MachineEvent("started", at.state, 0)]
        try:
            context = rendered(self._machine.context, {"input": self._input})
        except (TemplateError, ExpressionError) as problem:
            return _ended(replace(at, failure=failure_of(problem)), events)
        if self._machine.settings.heartbeat_interval is not None:
            context.setdefault("worker_id", self._about.execution_id)
        return self._pass_on(_entered(replace(at, context=context), events))

    def resume(self, state: str, context: Context) -> StepResult:
        """Begin in the middle: in this state, with this context."""
        at = MachinePlace(state, 1, "", dict(context))
        return self._pass_on(_entered(at, [MachineEvent("started", state, 0, "resumed")]))

    def effect(self, at: MachinePlace) -> Effect:
        """What is to be done next. `TemplateError` or `ExpressionError` when it cannot be said: then it `failed`."""
        state = self._state(at)
        match at.part:
            case "wait_for":
                return TakeSignal(str(rendered(state.wait_for, self._names(at))))
            case "action":
                return self._act(at, state)
            case "launch":
                return Launch(self._all_wanted(at, state, launching=True)[0])
            case "machine":
                return self._run(at, state)
            case "agent":
                return AskAgent(state.agent or "", rendered(state.input, self._names(at)))
            case "transition":
                return Hook(at.part, self.seen(at), at.output, to=self._chosen(at))
            case _:
                return Hook(at.part, self.seen(at), at.output)

    def succeeded(self, at: MachinePlace, output: Any) -> StepResult:
        """The part was done, with this output."""
        events = [MachineEvent("executed", at.state, at.step, at.part)]
        try:
            moved = self._continue(self._taken(at, output), at.part, events)
        except PROBLEMS as problem:
            moved = self._failed(at, failure_of(problem), events)
        return self._pass_on(moved)

    def failed(self, at: MachinePlace, failure: StateFailure) -> StepResult:
        """The part failed: the state that `on_error` names takes it, or the machine fails."""
        return self._pass_on(self._failed(at, failure, []))

    def recovered(self, at: MachinePlace, to: str) -> StepResult:
        """The machine failed, and its hooks chose the state that takes the error."""
        if at.failure is None or to not in self._machine.states:
            message = f"the hooks want to recover in state {to!r}, which is not there."
            return _ended(replace(at, failure=StateFailure((NoTransition.__name__,), message)), [])
        try:
            return self._pass_on(self._follow(replace(at, failure=None), to, []))
        except MaxStepsExceeded as problem:
            return _ended(replace(at, failure=failure_of(problem)), [])

    def seen(self, at: MachinePlace) -> Context:
        """The context as templates, conditions and hooks see it."""
        machine = {
            "execution_id": self._about.execution_id,
            "machine_name": self._machine.name,
            "parent_execution_id": self._about.parent_execution_id,
            "spec_version": self._machine.version,
            "step": at.step,
            "current_state": at.state,
            "depth": self._about.depth,
        }
        return {**at.context, "machine": machine}

    # Inside

    def _state(self, at: MachinePlace) -> Stage:
        return self._machine.states[at.state]

    def _names(self, at: MachinePlace, **more: Any) -> dict[str, Any]:
        return {"context": self.seen(at), "input": self._input, "output": at.output, **more}

    def _pass_on(self, moved: StepResult) -> StepResult:
        """Pass through the states in which nothing is to be done."""
        at, events = moved.to, list(moved.events)
        while at.part == _PASSING:
            try:
                moved = self._continue(at, "", [])
            except PROBLEMS as problem:
                moved = self._failed(at, failure_of(problem), [])
            at = moved.to
            events += moved.events
        return StepResult(at, tuple(events))

    def _failed(self, at: MachinePlace, failure: StateFailure, events: Sequence[MachineEvent]) -> StepResult:
        happened = [*events, MachineEvent("failed", at.state, at.step, f"{failure.type}: {failure.message}")]
        over = at.over or failure.type == MaxStepsExceeded.__name__
        on_error = self._state(at).on_error
        to = next((to for name in (*failure.classes, "default") for known, to in on_error if known == name), None)
        at = replace(at, context=at.context | _said(failure), over=over)
        if to is None:
            return _ended(replace(at, failure=failure), happened)
        try:
            return self._follow(at, to, happened)
        except MaxStepsExceeded as problem:
            return self._failed(at, failure_of(problem), happened)

    def _continue(self, at: MachinePlace, done: str, events: list[MachineEvent]) -> StepResult:
        """After `done`: the next part of this state, or the next state."""
        state, parts = self._state(at), self._parts(at)
        later = ORDER[ORDER.index(done) + 1 :] if done else ORDER
        part = next((part for part in later if part in parts), "")
        if state.is_final and done not in ("exit", "end") and part in ("exit", "end", ""):
            at = replace(at, output=rendered(state.output, self._names(at)) if state.output is not None else {})
        if part == "wait_for":
            channel = str(rendered(state.wait_for, self._names(at)))
            events = [*events, MachineEvent("waiting", at.state, at.step, channel)]
        if part:
            return StepResult(replace(at, part=part), tuple(events))
        if state.is_final:
            return _ended(replace(at, part="", result=at.output), events)
        return self._follow(at, at.output if done == "transition" else self._chosen(at), events)

    def _parts(self, at: MachinePlace) -> set[str]:
        state = self._state(at)
        hooked = {part for part, method in HOOKED.items() if method in self._hooked}
        hooked -= {"transition"} if state.is_final else {"end"}
        if at.step > 1:
            hooked.discard("start")
        return {*state.parts(), *hooked}

    def _follow(self, at: MachinePlace, to: str, events: Sequence[MachineEvent]) -> StepResult:
        if to not in self._machine.states:
            raise NoTransition(f"the hooks want to continue in state {to!r}, which is not there.")
        most = self._machine.settings.max_steps
        if at.step >= most + (_AFTER_LIMIT if at.over else 0):
            problem = MaxStepsExceeded(f"{most:,} states were entered, and settings.max_steps allows no more.")
            if at.over:
                return _ended(replace(at, part="", failure=failure_of(problem)), events)
            raise problem
        left = [*events, MachineEvent("left", at.state, at.step, to)]
        return _entered(replace(at, state=to, step=at.step + 1), left)

    def _chosen(self, at: MachinePlace) -> str:
        names = self._names(at)
        for transition in self._state(at).transitions:
            if transition.condition is None or transition.condition.holds(names):
                return transition.to
        raise NoTransition(f"no transition of state {at.state!r} has a condition that holds.")

    def _taken(self, at: MachinePlace, output: Any) -> MachinePlace:
        """The place with what was put out taken into its context, as the state says."""
        state = self._state(at)
        if at.part in ("start", "enter"):
            return replace(at, context=_merged(at.context, output))
        if at.part in ("exit", "end"):
            return replace(at, output=at.output if output is None else output)
        if at.part == "transition":
            return replace(at, output=output)
        at = replace(at, output=output)
        is_last = at.part == state.parts()[-1]
        if is_last and state.to_context:
            names = self._names(at)
            taken = {name: rendered(value, names) for name, value in state.to_context}
            return replace(at, context=_merged(at.context, taken))
        if at.part == "action" and state.foreach is None:
            return replace(at, context=_merged(at.context, output))
        return at

    def _items(self, at: MachinePlace, state: Stage) -> list[Any]:
        items = rendered(state.foreach, self._names(at))
        if not isinstance(items, list):
            raise TemplateError(f"foreach of state {state.name!r} gives {type(items).__name__}, not a list.")
        if len(items) > MOST_ITEMS:
            raise TemplateError(f"foreach of state {state.name!r} has more than {MOST_ITEMS:,} items.")
        return items

    def _keys(self, at: MachinePlace, state: Stage, items: list[Any]) -> tuple[str, ...] | None:
        if state.key is None:
            return None
        keys = []
        for index, item in enumerate(items):
            key = state.key.render(self._names(at, **{state.item: item, "index": index}))
            keys.append(key if isinstance(key, str) else _spelled(key))
        if len(set(keys)) < len(keys):
            raise TemplateError(f"key of state {state.name!r} gives the same key for two items.")
        return tuple(keys)

    def _act(self, at: MachinePlace, state: Stage) -> ActionCall:
        seen, action = self.seen(at), state.action or ""
        if state.foreach is None:
            return ActionCall(action, (seen,), None, each=False)
        items = self._items(at, state)
        contexts = tuple({**seen, state.item: item, "index": index} for index, item in enumerate(items))
        return ActionCall(action, contexts, self._keys(at, state, items), each=True)

    def _run(self, at: MachinePlace, state: Stage) -> RunMachines:
        wanted, items = self._all_wanted(at, state, launching=False)
        labels = self._keys(at, state, items) if items is not None else _labels(wanted) if state.several else None
        return RunMachines(wanted, labels, single=items is None and not state.several, first=state.mode == "any")

    def _all_wanted(
        self, at: MachinePlace, state: Stage, *, launching: bool
    ) -> tuple[tuple[WantedRun, ...], list[Any] | None]:
        calls, given = (state.launches, state.launch_input) if launching else (state.calls, state.input)
        if state.foreach is None:
            names = self._names(at)
            return tuple(WantedRun(c.name, _mapping(rendered(c.input or given, names))) for c in calls), None
        items, name, seen = self._items(at, state), calls[0].name, self.seen(at)
        wanted = []
        for index, item in enumerate(items):
            names = {"context": seen, "input": self._input, "output": None, state.item: item, "index": index}
            wanted.append(WantedRun(name, {state.item: item} if given is None else _mapping(rendered(given, names))))
        return tuple(wanted), items


class NoTransition(Exception):
    """No transition of a state that is not final has a condition that holds."""


class MaxStepsExceeded(Exception):
    """A machine has entered more states than its settings allow."""


def failure_of(problem: BaseException) -> StateFailure:
    """An exception as on_error sees it: by its class, and by those that it derives from."""
    classes = tuple(each.__name__ for each in type(problem).__mro__ if each not in (object, BaseException))
    return StateFailure(classes, str(problem) or type(problem).__name__)


def patch(before: Context, after: Context) -> tuple[Context, list[str]]:
    """What to set in the first context, and what to remove, to get the second."""
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed, [name for name in before if name not in after]


PROBLEMS = (TemplateError, ExpressionError, NoTransition, MaxStepsExceeded)  # of the machine itself


def _entered(at: MachinePlace, events: Sequence[MachineEvent]) -> StepResult:
    happened = (*events, MachineEvent("entered", at.state, at.step))
    return StepResult(replace(at, part=_PASSING, output=None), happened)


def _ended(at: MachinePlace, events: Sequence[MachineEvent]) -> StepResult:
    detail = "" if at.failure is None else at.failure.type
    return StepResult(replace(at, part="", output=None), (*events, MachineEvent("ended", at.state, at.step, detail)))


def _said(failure: StateFailure) -> Context:
    return {"last_error": failure.message, "last_error_type": failure.type, "error": failure.message}


def _merged(context: Context, output: Any) -> Context:
    """A mapping that was put out becomes part of the context, except for what is the engine's own."""
    if not isinstance(output, dict):
        return context
    return {**context, **{name: value for name, value in output.items() if name != "machine"}}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _labels(wanted: Sequence[WantedRun]) -> tuple[str, ...]:
    """The names of machines; the second of the same name is `name_2`."""
    seen: dict[str, int] = {}
    labels = []
    for each in wanted:
        seen[each.name] = seen.get(each.name, 0) + 1
        labels.append(each.name if seen[each.name] == 1 else f"{each.name}_{seen[each.name]}")
    return tuple(labels)


def _spelled(key: Any) -> str:
    return "null" if key is None else str(key).lower() if isinstance(key, bool) else str(key)
