"""Load a machine: text to a checked graph. Every mistake of the file is found before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from holdfast.machines import expressions, templates
from holdfast.machines.check import check_graph
from holdfast.machines.documents import Entry, Mapping, Node, Scalar, Sequence, plain_value, read_document
from holdfast.machines.graph import (
    AgentDefinition,
    Execution,
    GraphSettings,
    GraphTransition,
    HookSpec,
    MachineCall,
    MachineGraph,
    Path,
    Stage,
    ToolLoop,
    Value,
)
from holdfast.machines.language import TABLES, Key
from holdfast.machines.problems import Findings, Position
from holdfast.machines.templates import TextTemplate

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_ITEM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PATH = re.compile(r"(context|input|output)(\.[A-Za-z_]\w*)+")
_NAMED = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*\}\}")  # a template that names a value, and makes none
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})?([-+].*)?")
_NEWEST = (4, 2)
_KINDS = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}
_RESERVED = frozenset({"context", "input", "output", "range", "loop"})


def load(text: str, file: str) -> MachineGraph:
    """The machine of this text. `BadMachine` with everything that is wrong in it."""
    return _Loader(text, file).load()


class _Loader:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._found = Findings()
        self._native = True
        self._names: tuple[str, ...] = ()

    def load(self) -> MachineGraph:
        root = read_document(self._text, self._file)
        if not isinstance(root, Mapping):
            self._found.add(root.at, "a machine must be a mapping with spec, spec_version and data.")
            self._found.raise_any()
        assert isinstance(root, Mapping)
        version = self._version(root.get("spec_version"))
        self._shape(root, "machine", "a machine")
        data = root.get("data")
        machine = self._machine(data, version) if isinstance(data, Mapping) else None
        if machine is not None:
            check_graph(machine, self._found)
        self._found.raise_any()
        assert machine is not None
        return _with_warnings(machine, self._found)

    def _version(self, node: Node | None) -> str:
        """The dialect, which decides what a template with braces gives."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return ""
        found = _VERSION.fullmatch(node.value)
        if found is None:
            self._found.add(node.at, f'{node.value[:40]!r} is not a version; write spec_version: "0.8.3".')
            return node.value
        version = int(found[1]), int(found[2])
        self._native = version < (1, 0)
        if version > _NEWEST:
            newest = ".".join(map(str, _NEWEST))
            self._found.warn(node.at, f"dialect {node.value} is newer than {newest}, the newest that is known here.")
        return node.value

    # Shape: keys and types, by the table of the language

    def _shape(self, node: Mapping, table: str, what: str) -> None:
        keys = TABLES[table]
        for entry in node.entries:
            if entry.name not in keys:
                self._found.unknown(entry.at, f"key for {what} called", entry.name, keys)
            elif (instead := keys[entry.name].instead) != "":
                self._found.add(entry.at, f"{entry.name!r} is not supported. Instead, {instead}.")
            elif self._has_type(entry, keys[entry.name]):
                self._deeper(entry, keys[entry.name], what)
        for name, key in keys.items():
            if key.required and node.get(name) is None:
                self._found.add(node.at, f"{what} needs the key {name!r}.")

    def _has_type(self, entry: Entry, key: Key) -> bool:
        node = entry.node
        if _type_of(node) not in key.types and not (_type_of(node) == "integer" and "number" in key.types):
            wanted = " or ".join(
                _SPOKEN[name] for name in key.types if not (name == "integer" and "number" in key.types)
            )
            hint = " Put quotes around it." if key.types == ("string",) and isinstance(node, Scalar) else ""
            self._found.add(node.at, f"{entry.name!r} must be {wanted}; got {_SPOKEN[_type_of(node)]}.{hint}")
            return False
        if isinstance(node, Scalar) and key.one_of and node.value not in key.one_of:
            if entry.name == "expression_engine" and node.value == "cel":
                self._found.add(node.at, "conditions in CEL are not supported: write them in the simple language.")
            else:
                self._found.unknown(node.at, entry.name, str(node.value), key.one_of)
        number = _number(node)
        if key.least is not None and number is not None and (number < key.least or not number):
            least = f"at least {key.least:g}" if key.least else "more than 0"
            self._found.add(node.at, f"{entry.name!r} is {least}.")
        return True

    def _deeper(self, entry: Entry, key: Key, what: str) -> None:
        node = entry.node
        if key.of and isinstance(node, Mapping):
            self._shape(node, key.of, f"{entry.name!r}")
        if key.each and isinstance(node, Mapping):
            for each in node.entries:
                self._each(each.node, key.each, f"{key.each} {each.name!r}")
        if key.each and isinstance(node, Sequence):
            for number, item in enumerate(node.items, 1):
                self._each(item, key.each, f"{key.each} {number}")

    def _each(self, node: Node, table: str, what: str) -> None:
        if isinstance(node, Mapping):
            self._shape(node, table, what)
        elif not (table == "agent" and isinstance(node, Scalar) and isinstance(node.value, str)):
            self._found.add(node.at, f"{what} must be a mapping; got {_SPOKEN[_type_of(node)]}.")

    # Meaning

    def _machine(self, data: Mapping, version: str) -> MachineGraph:
        stem = PurePath(self._file).name.split(".")[0] or "machine"
        name = _text(data.get("name")) or stem
        if not _NAME.fullmatch(name):
            self._found.add(
                (data.get("name") or data).at,
                f"{name!r} is not a name: letters, digits, _, - and ., at most 100, no digit first.",
            )
        states = {}
        node = data.get("states")
        for entry in node.entries if isinstance(node, Mapping) else ():
            if not _NAME.fullmatch(entry.name):
                self._found.add(entry.at, f"{entry.name!r} is not a name for a state: letters, digits, _, - and .")
            if isinstance(entry.node, Mapping):
                states[entry.name] = self._state(entry)
        return MachineGraph(
            name=name,
            version=version,
            file=self._file,
            text=self._text,
            initial=self._initial(states, data if node is None else node),
            context=self._fields(data.get("context"), ("input",)),
            states=states,
            settings=self._settings(data.get("settings")),
            hooks=self._hooks(data.get("hooks")),
            lifecycle=self._hooks(data.get("lifecycle_hooks")),
            machines=self._named(data.get("machines")),
            agents=self._agents(data.get("agents")),
        )

    def _initial(self, states: dict[str, Stage], node: Node) -> str:
        """The state marked initial; else `start`, else the first."""
        marked = [state for state in states.values() if state.type == "initial"]
        for again in marked[1:]:
            self._found.add(again.at, f"{again.name!r} is initial, and so is {marked[0].name!r}; one state is.")
        if not states:
            self._found.add(node.at, "a machine needs at least one state.")
        return marked[0].name if marked else "start" if "start" in states else next(iter(states), "")

    def _state(self, entry: Entry) -> Stage:
        node = entry.node
        assert isinstance(node, Mapping)
        item = _text(node.get("as")) or "item"
        if not _ITEM.fullmatch(item) or item in _RESERVED:
            self._found.add((node.get("as") or node).at, f"{item!r} cannot be the name of an item.")
        each = (item, "index") if node.get("foreach") is not None else ()
        names = ("context", "input", *each)
        after = ("context", "input", "output", *(() if node.get("key") is None else each))
        on_error = node.get("on_error")
        machine = node.get("machine")
        key = self._value(node.get("key"), (*names, "output"))
        return Stage(
            name=entry.name,
            at=entry.at,
            places=_places(node),
            type=_text(node.get("type")) or "",
            action=_text(node.get("action")),
            hooks=None if node.get("hooks") is None else self._hooks(node.get("hooks")),
            calls=self._calls(machine, names),
            several=isinstance(machine, Sequence),
            input=self._value(node.get("input"), names),
            mode=_text(node.get("mode")) or "settled",
            foreach=self._value(node.get("foreach"), ("context", "input")),
            item=item,
            key=key if isinstance(key, TextTemplate | Path) else None,
            launches=self._calls(node.get("launch"), names),
            launch_input=self._value(node.get("launch_input"), names),
            agent=_text(node.get("agent")),
            execution=self._execution(node.get("execution")),
            tool_loop=self._tool_loop(node),
            wait_for=self._value(node.get("wait_for"), ("context", "input")),
            timeout=_number(node.get("timeout")),
            to_context=tuple(self._fields(node.get("output_to_context"), after).items()),
            on_error=self._on_error(on_error),
            output=self._value(node.get("output"), ("context", "input", "output")),
            transitions=self._transitions(node.get("transitions")),
        )

    def _on_error(self, node: Node | None) -> tuple[tuple[str, str], ...]:
        if isinstance(node, Mapping):
            for entry in node.entries:
                if _text(entry.node) is None:
                    self._found.add(entry.node.at, f"{entry.name!r} names a state.")
            return tuple((entry.name, _text(entry.node) or "") for entry in node.entries)
        name = _text(node)
        return () if name is None else (("default", name),)

    def _transitions(self, node: Node | None) -> tuple[GraphTransition, ...]:
        made = []
        for item in node.items if isinstance(node, Sequence) else ():
            to = _text(item.get("to")) if isinstance(item, Mapping) else None
            if isinstance(item, Mapping) and to is not None:
                place = item.get("to") or item
                made.append(
                    GraphTransition(
                        to, self._condition(item.get("condition")), place.at, (item.get("condition") or place).at
                    )
                )
        return tuple(made)

    def _condition(self, node: Node | None) -> expressions.Expression | None:
        text = _text(node)
        if node is None or text is None:
            return None
        try:
            made = expressions.parse(text)
        except expressions.BadExpression as problem:
            assert isinstance(node, Scalar)
            at = node.within(text.count("\n", 0, problem.column), problem.column)
            self._found.add(at, f"condition {text!r}: {problem}")
            return None
        for name in sorted(expressions.names_of(made.tree) - set(expressions.NAMES)):
            self._found.unknown(node.at, "name in conditions called", name, expressions.NAMES)
        return made

    def _calls(self, node: Node | None, names: tuple[str, ...]) -> tuple[MachineCall, ...]:
        made = []
        for item in node.items if isinstance(node, Sequence) else [node] if node is not None else []:
            if isinstance(item, Mapping):
                name = _text(item.get("name"))
                for entry in item.entries:
                    if entry.name not in ("name", "input"):
                        self._found.unknown(entry.at, "key for a machine called", entry.name, ("name", "input"))
                if name is None:
                    self._found.add((item.get("name") or item).at, "a machine in a list has a name.")
                made.append(
                    MachineCall(name or "", self._value(item.get("input"), names), (item.get("name") or item).at)
                )
            elif (text := _text(item)) is not None:
                made.append(MachineCall(text, None, item.at))
            else:
                self._found.add(item.at, "a machine is named by a text.")
        return tuple(made)

    def _hooks(self, node: Node | None) -> tuple[HookSpec, ...]:
        items = node.items if isinstance(node, Sequence) else [node] if node is not None else []
        return tuple(made for item in items if (made := self._hook(item)) is not None)

    def _hook(self, node: Node) -> HookSpec | None:
        if (name := _text(node)) is not None:
            return HookSpec(name, (), node.at)
        if not isinstance(node, Mapping):
            self._found.add(node.at, "hooks are a registered name, or {name, args}.")
            return None
        for entry in node.entries:
            if entry.name not in ("name", "args", "class", "module", "file"):
                self._found.unknown(entry.at, "key for hooks called", entry.name, ("name", "args"))
        name, args = _text(node.get("name")) or _text(node.get("class")), node.get("args")
        if name is None:
            self._found.add(
                (node.get("name") or node).at, "hooks need a name; the program registers what it stands for."
            )
            return None
        given = plain_value(args) if isinstance(args, Mapping) else {}
        return HookSpec(name, tuple(given.items()), node.at)

    def _named(self, node: Node | None) -> dict[str, str]:
        named = {}
        for entry in node.entries if isinstance(node, Mapping) else ():
            text = _text(entry.node)
            if text is None:
                self._found.add(entry.node.at, f"machine {entry.name!r} is the name of a file, or of a machine.")
            else:
                named[entry.name] = text
        return named

    def _agents(self, node: Node | None) -> dict[str, str | AgentDefinition]:
        agents: dict[str, str | AgentDefinition] = {}
        for entry in node.entries if isinstance(node, Mapping) else ():
            if isinstance(entry.node, Mapping):
                instructions = _text(entry.node.get("instructions")) or _text(entry.node.get("system")) or ""
                agents[entry.name] = AgentDefinition(_text(entry.node.get("model")) or "", instructions)
            elif (text := _text(entry.node)) is not None:
                agents[entry.name] = text
        return agents

    def _settings(self, node: Node | None) -> GraphSettings:
        get: Callable[[str], Node | None] = node.get if isinstance(node, Mapping) else lambda name: None
        steps, interval = _number(get("max_steps")), _number(get("heartbeat_interval"))
        return GraphSettings(
            **({"max_steps": int(steps)} if steps else {}),
            timeout=_number(get("timeout")),
            heartbeat_interval=interval,
            worker_pool=_text(get("worker_pool")),
            backends=plain_value(backends) if isinstance(backends := get("backends"), Mapping) else None,
        )

    def _execution(self, node: Node | None) -> Execution:
        if not isinstance(node, Mapping):
            return Execution()
        given: dict[str, Any] = {
            name: value for name, value in plain_value(node).items() if name in TABLES["execution"]
        }
        backoffs = given.pop("backoffs", None)
        if isinstance(backoffs, list):
            if not all(isinstance(each, int | float) and each >= 0 for each in backoffs):
                self._found.add((node.get("backoffs") or node).at, "'backoffs' is a list of seconds.")
            given["backoffs"] = tuple(backoffs)
        return Execution(**given)

    def _tool_loop(self, state: Mapping) -> ToolLoop:
        node = state.get("tool_loop")
        if node is not None and state.get("agent") is None:
            self._found.add(node.at, "'tool_loop' is of an agent, and this state has none.")
        if not isinstance(node, Mapping):
            return ToolLoop()
        return ToolLoop(**{name: value for name, value in plain_value(node).items() if name in ToolLoop.__slots__})

    # Templates

    def _value(self, node: Node | None, names: tuple[str, ...]) -> Value:
        """A value in which templates may stand; they may read these names."""
        match node:
            case None:
                return None
            case Scalar(value=str() as text):
                return self._template(text, node, names)
            case Scalar():
                return node.value
            case Sequence():
                return [self._value(item, names) for item in node.items]
            case Mapping():
                return {entry.name: self._value(entry.node, names) for entry in node.entries}

    def _fields(self, node: Node | None, names: tuple[str, ...]) -> dict[str, Value]:
        return self._value(node, names) if isinstance(node, Mapping) else {}

    def _template(self, text: str, node: Scalar, names: tuple[str, ...]) -> Value:
        if _PATH.fullmatch(text) and text.split(".", maxsplit=1)[0] in names:
            return Path(tuple(text.split(".")))
        named = _NAMED.fullmatch(text) if self._native else None
        if named is not None and (parts := tuple(named[1].split(".")))[0] in names:
            return Path(parts)
        if not templates.is_template(text):
            return text
        try:
            made = templates.compile_template(text, native=self._native)
        except templates.BadTemplate as problem:
            self._found.add(node.within(problem.line), f"template {_short(text)!r}: {problem}")
            return text
        for name in sorted(made.names - set(names)):
            self._found.unknown(node.at, "name in this template called", name, names)
        return made


_SPOKEN = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


def _type_of(node: Node) -> str:
    match node:
        case Mapping():
            return "object"
        case Sequence():
            return "array"
        case Scalar(value=bool()):
            return "boolean"
        case Scalar(value=int()):
            return "integer"
        case Scalar(value=float()):
            return "number"
        case Scalar(value=str()):
            return "string"
        case _:
            return "null"


def _places(state: Mapping) -> dict[str, Position]:
    """Where the value of each key of a state stands, and under `on_error CLASS` each state that errors lead to."""
    on_error = state.get("on_error")
    classes = on_error.entries if isinstance(on_error, Mapping) else ()
    places = {entry.name: entry.node.at for entry in state.entries}
    return places | {f"on_error {entry.name}": entry.node.at for entry in classes}


def _text(node: Node | None) -> str | None:
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def _number(node: Node | None) -> float | None:
    is_number = isinstance(node, Scalar) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    return float(node.value) if is_number else None  # type: ignore[union-attr,arg-type]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _with_warnings(machine: MachineGraph, found: Findings) -> MachineGraph:
    return replace(machine, warnings=tuple(found.warnings))
