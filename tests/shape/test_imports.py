"""Modules do not import each other in circles, also not under TYPE_CHECKING or inside of functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.shape.tree import SOURCE, listed, modules, source

# Wherever it stands, also in a function. What a text imports as an example counts too, and makes no circle.
IMPORT = re.compile(r"^[ \t]*from (holdfast[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


def dotted(path: Path) -> str:
    return ".".join(("holdfast", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported(text: str, known: set[str]) -> Iterator[str]:
    for module, names in IMPORT.findall(text):
        if module in known:
            (node,) = ast.parse(f"from {module} import {names}").body
            assert isinstance(node, ast.ImportFrom)
            for name in node.names:
                inner = f"{module}.{name.name}"
                yield inner if inner in known else module


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules of which each reaches all others, in one pass over the graph (Tarjan's)."""
    number: dict[str, int] = {}  # in which order they were met
    lowest: dict[str, int] = {}  # the first met that is reached from there and may reach it
    path: list[str] = []
    found = set[frozenset[str]]()
    for start in graph:
        todo = [] if start in number else [(start, iter(graph[start]))]
        while todo:
            name, rest = todo[-1]
            if name not in number:
                number[name] = lowest[name] = len(number)
                path.append(name)
            if (other := next(rest, None)) is None:
                todo.pop()
                if todo:
                    above = todo[-1][0]
                    lowest[above] = min(lowest[above], lowest[name])
                if lowest[name] == number[name]:
                    at = path.index(name)
                    circle = frozenset(path[at:])
                    del path[at:]
                    lowest |= dict.fromkeys(circle, len(graph))
                    if len(circle) > 1 or name in graph[name]:
                        found.add(circle)
            elif other not in number:
                todo.append((other, iter(graph[other])))
            else:
                lowest[name] = min(lowest[name], lowest[other])
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {dotted(path): path for path in modules()}
    graph = {name: set(imported(source(path), set(paths))) - {name} for name, path in paths.items()}
    found = circles(graph)
    assert not found, listed([sorted(circle) for circle in found])


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert circles(graph) == {frozenset({"b", "c"})}
    graph |= {"d": {"e", "g"}, "e": {"f", "a"}, "f": {"f"}, "g": {"h"}, "h": {"i"}, "i": {"g", "f"}}
    assert circles(graph) == {frozenset("abcde"), frozenset("f"), frozenset("ghi")}


def test_an_import_is_seen_wherever_it_stands() -> None:
    text = "from holdfast import a\nif T:\n    from holdfast.b import (\n        c,  # c\n        d as e,\n    )\n"
    known = {"holdfast", "holdfast.a", "holdfast.b", "holdfast.b.d"}
    assert {*imported(text, known)} == {"holdfast.a", "holdfast.b", "holdfast.b.d"}
