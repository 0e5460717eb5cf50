"""Every planted bug still has its place, and what it names; a few are planted here, all of them by `make mutants`."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.__main__ import run_tests
from tests.mutants.catalogue import MUTANTS, PARTS
from tests.mutants.planting import AnchorLost, Code, Swap, Words

ROOT = Path(__file__).parents[2]
TABLES = ("agentpg", "agx", "flatagents", "universal-agent")
ROW = re.compile(r"^\| ((?:AP|AGX|FA|UA)-\d\d) \| (.+) \|$", re.MULTILINE)
FEW = ("renewal under any token", "one too many in a lane", "wrong keys without end")


def test_every_anchor_is_there() -> None:
    lost = []
    for mutant in MUTANTS.values():
        try:
            mutant.check()
        except AnchorLost as problem:
            lost.append(f"{mutant.name}: {problem}")
    assert not lost, "\n".join(lost)


def test_a_planted_bug_has_a_name_of_its_own_and_tests_that_are_there() -> None:
    names = Counter(mutant.name for part in PARTS for mutant in part)
    assert [name for name, times in names.items() if times > 1] == []
    named = {test.partition("[")[0] for mutant in MUTANTS.values() for test in mutant.tests}
    assert all(mutant.tests for mutant in MUTANTS.values())
    assert sorted(test for test in named if test.partition("::")[2] not in functions_in(test.partition("::")[0])) == []


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef))


@pytest.mark.parametrize("name", FEW)
def test_a_planted_bug_is_noticed(name: str) -> None:
    tests = [
        f"{test}[sqlite]" if test.startswith("conformance/") and "[" not in test else test
        for test in MUTANTS[name].tests
    ]
    ran = run_tests(tests[:1], "--mutant", name)
    assert not ran.trouble
    assert ran.failed


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Words("renew", "no such words"), "the statement renew says 'no such words' 0 times"),
        (Words("no_such_statement", "select"), "0 files have a statement no_such_statement"),
        (Code("holdfast.kernel.families:settle", "no such words"), "settle says 'no such words' 0 times"),
        (Code("holdfast.kernel.families:settle", "await"), r"settle says 'await' \d+ times"),
        (Code("holdfast.kernel.families:settles", "await"), "families:settles is no function"),
        (Code("holdfast.kernel.family:settle", "await"), "there is no holdfast.kernel.family"),
        (Swap("holdfast.resp.gateway:FAILURE", 1), "there is no holdfast.resp.gateway:FAILURE"),
    ],
)
def test_a_lost_anchor_says_what_is_gone(edit: Words | Code | Swap, words: str) -> None:
    with pytest.raises(AnchorLost, match=words):
        edit.check()


def test_tables_of_statements_name_the_bugs_that_would_break_them() -> None:
    expected: defaultdict[str, set[str]] = defaultdict(set)
    for mutant in MUTANTS.values():
        for statement in mutant.shows:
            expected[statement].add(mutant.name)
    named = {statement: bugs for statement, bugs in bugs_of_tables().items() if bugs}
    assert named == expected


def bugs_of_tables() -> dict[str, set[str]]:
    """Statement -> what the last column of its row says, if the row has one."""
    found: dict[str, set[str]] = {}
    for table in TABLES:
        for number, rest in ROW.findall((ROOT / "docs" / "reference" / f"{table}.md").read_text()):
            cells = rest.split(" | ")
            found[number] = set(cells[2].split("; ")) if len(cells) > 2 else set()
    return found
