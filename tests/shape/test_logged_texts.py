"""What a provider, a store or a program said in an exception is logged so that it can neither leak nor command."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.shape.tree import SOURCE, modules, saying, source


def logged_raw(text: str) -> Iterator[int]:
    """The lines that log an exception as it is, where `shown` would make it a text for people."""
    tree = ast.parse(text)
    exceptions = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name} | {
        node.arg for node in ast.walk(tree) if isinstance(node, ast.arg) and "Failure" in _annotation(node)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "log"
        ):
            yield from (each.lineno for each in node.args if isinstance(each, ast.Name) and each.id in exceptions)


def _annotation(node: ast.arg) -> str:
    return ast.unparse(node.annotation) if node.annotation is not None else ""


def test_agents_log_no_exception_as_it_is() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in saying(r"\blog\.\w+\(", modules("agents"))
        for line in logged_raw(source(path))
    ]
    assert found == []


def test_the_rule_sees_what_it_forbids() -> None:
    text = "try: f()\nexcept OSError as problem: log.warning('%s', {})\n"
    assert list(logged_raw(text.format("problem"))) == [2]
    assert list(logged_raw(text.format("shown(problem)"))) == []
    assert list(logged_raw("def f(failure: ModelFailure) -> None: log.error('%s', failure)")) == [1]
