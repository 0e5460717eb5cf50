"""YAML as nodes that know where they stand in the file.

PyYAML reads the text; this module makes the nodes from its events, without recursion, and never more of them than the
caps allow. Plain words mean what YAML 1.2 says: `on`, `yes` and `no` are texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.errors import MissingExtra
from holdfast.machines.problems import BadMachine, MachineProblem, Position

MOST_BYTES = 1_048_576
MOST_NODES = 50_000
DEEPEST = 40
MOST_ANCHORS = 100

Plain = None | bool | int | float | str

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Scalar:
    at: Position
    value: Plain
    style: str = ""  # how it is written: "" is plain, then quotes, | and >

    def within(self, line: int, column: int | None = None) -> Position:
        """Where a place in this text is in the file; both count from 0. Only | and > keep lines as they are."""
        if self.style in ("|", ">"):
            return self.at._replace(line=self.at.line + 1 + line, column=1)
        offset = 0 if column is None else column + bool(self.style)
        return self.at._replace(column=self.at.column + offset)


@dataclass(frozen=True, slots=True)
class Sequence:
    at: Position
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    at: Position
    name: str
    node: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    at: Position
    entries: tuple[Entry, ...]

    def get(self, name: str) -> Node | None:
        return next((entry.node for entry in self.entries if entry.name == name), None)


Node = Scalar | Sequence | Mapping


def read_document(text: str, file: str) -> Node:
    """The one document of a file. `BadMachine` when it is no YAML, or more than the caps allow."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise BadMachine([MachineProblem(Position(file, 1, 1), f"the file has more than {MOST_BYTES:,} bytes.")])
    return _DocumentReader(file).read(text)


class _Open:
    """A list or a mapping whose end has not come yet. In a mapping, names and values alternate."""

    def __init__(self, at: Position, is_mapping: bool, anchor: str | None) -> None:
        self.at = at
        self.is_mapping = is_mapping
        self.anchor = anchor
        self.nodes: list[Node] = []


class _DocumentReader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._anchors: dict[str, tuple[Node, int, int]] = {}  # with how many nodes, and how deep
        self._count = 0
        self._problems: list[MachineProblem] = []

    def read(self, text: str) -> Node:  # noqa: PLR0912  a case for each event
        root: Node | None = None
        open_nodes: list[_Open] = []
        for event in _events(text, self._file):
            kind, at = type(event).__name__, self._position(event)
            if kind in ("MappingStartEvent", "SequenceStartEvent"):
                if len(open_nodes) == DEEPEST:
                    raise BadMachine([MachineProblem(at, f"this is nested more than {DEEPEST} levels deep.")])
                self._refuse_tag(event, at)
                open_nodes.append(_Open(at, kind == "MappingStartEvent", event.anchor))
                continue
            if kind in ("MappingEndEvent", "SequenceEndEvent"):
                ended = open_nodes.pop()
                node, anchor = self._made(ended), ended.anchor
            elif kind == "ScalarEvent":
                self._refuse_tag(event, at)
                node, anchor = Scalar(at, self._finite(_plain(event), at), event.style or ""), event.anchor
            elif kind == "AliasEvent":
                node, anchor = self._alias(event.anchor, at, len(open_nodes)), None
            elif kind == "DocumentStartEvent" and root is not None:
                raise BadMachine([MachineProblem(at, "a file has one document; a second one begins here.")])
            else:
                continue
            self._count_node(node, at)
            if anchor is not None:
                self._anchor(anchor, node, at)
            if open_nodes:
                open_nodes[-1].nodes.append(node)
            else:
                root = node
        if self._problems:
            raise BadMachine(self._problems)
        if root is None:
            raise BadMachine([MachineProblem(Position(self._file, 1, 1), "the file is empty.")])
        return root

    def _position(self, event: Any) -> Position:
        return Position(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse_tag(self, event: Any, at: Position) -> None:
        if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:str"):
            self._problems.append(MachineProblem(at, f"tags such as {event.tag!r} are not part of the language."))

    def _finite(self, value: Plain, at: Position) -> Plain:
        if isinstance(value, float) and not math.isfinite(value):
            self._problems.append(MachineProblem(at, "this number is too large. Put quotes around it if it is a text."))
        return value

    def _anchor(self, anchor: str, node: Node, at: Position) -> None:
        if len(self._anchors) == MOST_ANCHORS:
            raise BadMachine([MachineProblem(at, f"the file has more than {MOST_ANCHORS} anchors.")])
        self._anchors[anchor] = (node, *_extent(node))

    def _alias(self, anchor: str, at: Position, depth: int) -> Node:
        if anchor not in self._anchors:
            raise BadMachine([MachineProblem(at, f"nothing before this is marked &{anchor}.")])
        node, size, height = self._anchors[anchor]
        if depth + height > DEEPEST:
            raise BadMachine(
                [MachineProblem(at, f"with what &{anchor} marks this is nested over {DEEPEST} levels deep.")]
            )
        self._count += size - 1
        return node

    def _count_node(self, node: Node, at: Position) -> None:
        self._count += 1
        if self._count > MOST_NODES:
            raise BadMachine(
                [MachineProblem(at, f"the file has more than {MOST_NODES:,} values, repeated ones included.")]
            )

    def _made(self, ended: _Open) -> Node:
        if not ended.is_mapping:
            return Sequence(ended.at, tuple(ended.nodes))
        entries: dict[str, Entry] = {}
        pairs = iter(ended.nodes)
        for key, value in zip(pairs, pairs, strict=True):
            if not isinstance(key, Scalar) or not isinstance(key.value, str | int) or isinstance(key.value, bool):
                self._problems.append(MachineProblem(key.at, "a key is a text; put quotes around it."))
                continue
            name = str(key.value)
            if name == "<<":
                self._problems.append(
                    MachineProblem(key.at, "merge keys (<<) are not part of the language: repeat the lines.")
                )
            elif name in entries:
                first = entries[name].at
                self._problems.append(
                    MachineProblem(key.at, f"{name!r} stands here again; it is in line {first.line} already.")
                )
            else:
                entries[name] = Entry(key.at, name, value)
        return Mapping(ended.at, tuple(entries.values()))


def _extent(node: Node) -> tuple[int, int]:
    """How many nodes it stands for where it is repeated, and how deep they are nested."""
    count = height = 0
    left: list[tuple[Node, int]] = [(node, 1)]
    while left and count <= MOST_NODES:
        each, depth = left.pop()
        count, height = count + 1, max(height, depth)
        if isinstance(each, Sequence):
            left += [(item, depth + 1) for item in each.items]
        elif isinstance(each, Mapping):
            left += [(entry.node, depth + 1) for entry in each.entries]
    return count, height


def _plain(event: Any) -> Plain:
    text: str = event.value
    if event.style or event.tag is not None:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _events(text: str, file: str) -> Iterator[Any]:
    try:
        import yaml
    except ImportError:
        raise MissingExtra("machines", "a machine") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.reader.ReaderError as problem:
        before = text[: problem.position] if isinstance(problem.position, int) else ""
        at = Position(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise BadMachine([MachineProblem(at, f"this is not YAML: {problem.reason}.")]) from None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        at = Position(file, mark.line + 1, mark.column + 1) if mark else Position(file, 1, 1)
        said = " ".join(str(part) for part in (problem.context, problem.problem) if part)
        raise BadMachine([MachineProblem(at, f"this is not YAML: {said}.")]) from None
    except (ValueError, UnicodeError) as problem:
        raise BadMachine([MachineProblem(Position(file, 1, 1), f"this is not YAML: {problem}.")]) from None


def plain_value(node: Node) -> Any:
    """The node as the JSON value that it stands for."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [plain_value(item) for item in node.items]
        case Mapping():
            return {entry.name: plain_value(entry.node) for entry in node.entries}
