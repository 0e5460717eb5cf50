"""Plurals: a number that may be one is written with `plural`, so that nobody reads "1 jobs"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.text import plural

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
NOUNS = re.compile(
    r"\s(?:(?:more|open|other|live|last|ended|failed|waiting|running|older|newer|queued|positional|old|new|of its) )?"
    r"(actions|agents|anchors|approvals|attempts|batches|brokers|budgets|calls|capsules|"
    r"children|columns|commands|compactions|connections|days|deliveries|differences|entries|errors|events|examples|"
    r"executions|failures|fields|files|findings|forks|frames|groups|hits|hours|inquiries|items|jobs|keepers|keys|kinds|"
    r"lanes|leases|lines|machines|messages|migrations|modules|notes|parts|plans|pools|processes|problems|"
    r"purchases|questions|queues|readers|records|releases|requests|rescues|results|retries|rows|runs|schedules|"
    r"sessions|signals|slots|statements|steps|streams|submits|summaries|tables|tasks|tenants|threads|ticks|"
    r"tools|tries|triggers|turns|versions|webhooks|workers)\b(?!/)"
)
# Where an f-string may have one of them after a value; only there is it worth while to parse.
SUSPECT = re.compile(r"\}(?:[\"']\s*[fr]*[\"'])?" + NOUNS.pattern)
FIXED = re.compile(r"_?[A-Z][A-Z_0-9.]*|[a-z_]+\.[A-Z][A-Z_]*")  # a constant is what it is, and never one
NAMES = re.compile(r"/$|\b(?:of|of the|worker|message|execution|job|run|session|turn) $")  # how many of, or which one
ASSEMBLED = re.compile(r"\{\{-?\s*(?P<value>[^{}]+?)\s*-?\}\}(?P<rest>[^{}<]*)")


def loose(path: Path) -> Iterator[tuple[str, int, str]]:
    """Where a number stands before a plural, whatever the number is."""
    written = path.read_text()
    if not SUSPECT.search(written):
        return
    for node in ast.walk(ast.parse(written)):
        if not isinstance(node, ast.JoinedStr):
            continue
        parts = [ast.Constant(""), *node.values]
        for before, value, text in zip(parts, parts[1:], parts[2:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            said, found = ast.unparse(value.value), NOUNS.match(str(text.value))
            one = isinstance(before, ast.Constant) and NAMES.search(str(before.value))
            if found and not one and not FIXED.fullmatch(said) and value.conversion == -1:
                yield str(path.relative_to(SOURCE)), node.lineno, f"{{{said}}}{found[0]}"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (plural(1, "job"), "1 job"),
        (plural(0, "job"), "0 jobs"),
        (plural(1_200, "child has", "children have"), "1,200 children have"),
        (plural(1, "job", more=" or more"), "1 or more jobs"),
    ],
)
def test_one_is_singular(said: str, expected: str) -> None:
    assert said == expected


def test_a_number_agrees_with_its_noun() -> None:
    found = [each for path in sorted(SOURCE.rglob("*.py")) for each in loose(path)]
    for path in sorted(SOURCE.rglob("*.html")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for each in ASSEMBLED.finditer(line):
                if NOUNS.match(each["rest"]) and "plural" not in each["value"]:
                    found.append((path.name, number, each[0]))
    assert not found, "\n".join(f"{file}:{line}: {text}; use plural()" for file, line, text in found)
