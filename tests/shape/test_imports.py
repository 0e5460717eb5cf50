"""Modules do not import each other in circles, also not under TYPE_CHECKING or inside of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.shape.tree import SOURCE, listed, modules, nodes

# A `Script` is recorded by `cassettes`, and what is recorded is a `Script`.
KNOWN = {frozenset({"holdfast.models.cassettes", "holdfast.models.script"})}
SHORT_FORM = ("holdfast.app", "holdfast.http.app")  # hf.web(…) is web(hf, …)


def dotted(path: Path) -> str:
    return ".".join(("holdfast", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported(path: Path, known: set[str]) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in known else node.module


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules of which each reaches all others."""
    below = {name: reached(graph, name) for name in graph}
    return {
        frozenset({other for other in seen if name in below[other]}) for name, seen in below.items() if name in seen
    }


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [*graph[start]]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    return seen


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {dotted(path): path for path in modules()}
    graph = {name: set(imported(path, set(paths))) - {name} for name, path in paths.items()}
    graph[SHORT_FORM[0]].discard(SHORT_FORM[1])
    found = circles(graph) - KNOWN
    assert not found, listed([sorted(circle) for circle in found])


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert circles(graph) == {frozenset({"b", "c"})}
