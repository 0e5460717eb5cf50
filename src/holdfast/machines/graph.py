"""A machine as a checked graph: frozen records, with its templates and conditions compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.machines.expressions import Expression
from holdfast.machines.problems import MachineProblem, Position
from holdfast.machines.templates import TextTemplate

DEFAULT_STEPS = 1_000
DEFAULT_BACKOFFS = (2.0, 8.0, 16.0, 35.0)


@dataclass(frozen=True, slots=True)
class Path:
    """`context.x.y`, or `{{ context.x.y }}` alone: the value that it names, as it is, however large."""

    parts: tuple[str, ...]

    def render(self, names: Mapping[str, Any]) -> Any:
        value: Any = names
        for part in self.parts:
            value = value.get(part) if isinstance(value, dict) or value is names else None
        return value


Value = Any  # a plain value in which a Template or a Path may stand for one


@dataclass(frozen=True, slots=True)
class GraphTransition:
    to: str
    condition: Expression | None
    at: Position
    condition_at: Position


@dataclass(frozen=True, slots=True)
class HookSpec:
    """A registered name, and what the hooks are made with."""

    name: str
    args: tuple[tuple[str, Any], ...]
    at: Position


@dataclass(frozen=True, slots=True)
class MachineCall:
    """One machine to run; `input` None: the state's own."""

    name: str
    input: Value | None
    at: Position


@dataclass(frozen=True, slots=True)
class Execution:
    """How an agent is asked."""

    type: str = "default"
    backoffs: tuple[float, ...] = DEFAULT_BACKOFFS
    jitter: float = 0.1
    n_samples: int = 3
    k_margin: int = 3
    max_candidates: int = 10


@dataclass(frozen=True, slots=True)
class ToolLoop:
    max_turns: int | None = None
    total_timeout: float | None = None
    max_cost: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    at: Position
    type: str = ""
    action: str | None = None
    hooks: tuple[HookSpec, ...] | None = None
    calls: tuple[MachineCall, ...] = ()
    several: bool = False  # `machine` is a list: results by name, and errors among them
    input: Value = None
    mode: str = "settled"
    foreach: Value | None = None
    item: str = "item"
    key: TextTemplate | Path | None = None
    launches: tuple[MachineCall, ...] = ()
    launch_input: Value = None
    agent: str | None = None
    execution: Execution = field(default_factory=Execution)
    tool_loop: ToolLoop = field(default_factory=ToolLoop)
    wait_for: Value | None = None
    timeout: float | None = None
    to_context: tuple[tuple[str, Value], ...] = ()
    on_error: tuple[tuple[str, str], ...] = ()  # by class name; "default" is any other
    output: Value = None
    transitions: tuple[GraphTransition, ...] = ()
    places: Mapping[str, Position] = field(default_factory=dict)  # of the values of its keys

    def where(self, *keys: str) -> Position:
        """Where the value of the first of these keys stands; where the state does, if it has none of them."""
        return next((self.places[key] for key in keys if key in self.places), self.at)

    @property
    def is_final(self) -> bool:
        return self.type == "final"

    def targets(self) -> Iterator[str]:
        """The states that can follow."""
        yield from (each.to for each in self.transitions)
        yield from (to for _, to in self.on_error)

    def parts(self) -> tuple[str, ...]:
        """What is done in it, in this order."""
        if self.wait_for is not None:
            return ("wait_for",)
        done = {
            "action": self.action is not None,
            "launch": bool(self.launches),
            "machine": bool(self.calls),
            "agent": self.agent is not None,
        }
        return tuple(name for name, is_there in done.items() if is_there)


@dataclass(frozen=True, slots=True)
class GraphSettings:
    max_steps: int = DEFAULT_STEPS
    timeout: float | None = None
    heartbeat_interval: float | None = None
    worker_pool: str | None = None
    backends: Mapping[str, Any] | None = None  # for hooks to read


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """An agent that the file itself defines."""

    model: str
    instructions: str


@dataclass(frozen=True, slots=True)
class MachineGraph:
    name: str
    version: str
    file: str
    text: str
    initial: str
    context: Value
    states: Mapping[str, Stage]
    settings: GraphSettings
    hooks: tuple[HookSpec, ...]
    lifecycle: tuple[HookSpec, ...]
    machines: Mapping[str, str]  # the file or the name of each, by the name that states use
    agents: Mapping[str, str | AgentDefinition]
    warnings: tuple[MachineProblem, ...] = ()

    @property
    def kind(self) -> str:
        return f"machine:{self.name}"

    def called(self) -> dict[str, Position]:
        """The machines that its states run or launch, each with where it is named first."""
        found: dict[str, Position] = {}
        for state in self.states.values():
            for call in (*state.calls, *state.launches):
                found.setdefault(call.name, call.at)
        return found


def rendered(value: Value, names: Mapping[str, Any]) -> Any:
    """A plain value, with every template in it replaced by what it gives."""
    if isinstance(value, TextTemplate | Path):
        return value.render(names)
    if isinstance(value, dict):
        return {key: rendered(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [rendered(each, names) for each in value]
    return value
