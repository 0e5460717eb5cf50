"""State names stand in the tables of `kernel.states` and `agents.states`: Python uses their members, and SQL knows no
other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.agents import states
from holdfast.agents.states import LIVES
from holdfast.kernel.migrate import migrations
from holdfast.kernel.sql import Dialect, masked, sources, unmasked
from holdfast.kernel.statements import GROUPS
from holdfast.kernel.states import JOB, WORKER, Life, State, StateName, Verb
from tests.shape.tree import SOURCE, modules, named, parsed, saying, statements

NAMES = {state for life in LIVES for state in life.names}
BY_TABLE: dict[str, Life[Any, Any]] = {life.table: life for life in (*LIVES, WORKER)}
# Tables of the kernel that statements of agents read, and the states that are seen there.
KERNEL = {table: {*State} for table in ("ended", "later", "job_now", "lease")}

# A word that is the name of a state and means something else here.
OTHERWISE = {
    "streaming": "the mode of a run",
    "answered": "the outcome of a run",
    "failed": "how an attempt ended, a conclusion, or a word for people",
    "waiting": "what `wait_for_lane` and `queue_up` say to their callers",
    "open": "what `wait_for_lane` says of a lane",
    "cancelled": "what a step says to the loop when a cancel came first, or the type of an error",
    "ended": "what `commit` says to the loop, or the gate of a reason",
    "denied": "the type of an error",
    "canceling": "what the provider says of a batch",
    "batched": "the slots of runs in batch mode",
    "applied": "the rows that a statement takes",
}

# How an attempt ends is a value, and `complete` writes each of them.
OUTCOMES = {Verb.RETRY, Verb.FAIL, Verb.SNOOZE, Verb.RELEASE}


def _says_state(node: ast.expr) -> bool:
    """Whether an expression is a state by its name: `row.state`, `turn_state`, `verdict`."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in {"verdict", "state"} or name.endswith("_state")


def _texts(node: ast.AST) -> Iterator[ast.Constant]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and inner.value in NAMES:
            yield inner


def _where_a_state_is_meant(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that are compared with a state, matched with one, or given as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(_says_state, [node.left, *node.comparators])):
            yield from _texts(node)
        elif isinstance(node, ast.Match) and _says_state(node.subject):
            for case in node.cases:
                yield from _texts(case.pattern)
        elif isinstance(node, ast.keyword) and node.arg in ("state", "before", "verdict", "previous_state"):
            yield from _texts(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_says_state(target) for target in targets):
                yield from _texts(node.value)


def _agents() -> list[Path]:
    said = "|".join(map(re.escape, sorted(NAMES)))
    return [path for path in saying(rf"[\"'](?:{said})[\"']", modules("agents")) if named(path) != "agents/states.py"]


def test_python_names_states_by_their_members() -> None:
    found = {
        f"{named(path)}:{node.lineno} {node.value!r}"
        for path in _agents()
        for node in _where_a_state_is_meant(parsed(path))
    }
    assert found == set()


def test_a_word_that_only_a_state_has_stands_in_the_tables_alone() -> None:
    found = {
        f"{named(path)}:{node.lineno} {node.value!r}"
        for path in _agents()
        for node in _texts(parsed(path))
        if node.value not in OTHERWISE
    }
    assert found == set()


def _worker_states(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts with which the status of a worker is compared, or as which it is matched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(side, ast.Attribute) and side.attr == "status" for side in (node.left, *node.comparators)
        ):
            meant: list[ast.AST] = [node]
        elif isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute) and node.subject.attr == "status":
            meant = [case.pattern for case in node.cases]
        else:
            continue
        for inner in (inner for each in meant for inner in ast.walk(each)):
            if isinstance(inner, ast.Constant) and inner.value in WORKER.names:
                yield inner


def test_python_names_the_states_of_workers_by_their_members() -> None:
    """Facades spell other interfaces out, where workers are in states of their own."""
    found = {
        f"{named(path)}:{node.lineno} {node.value!r}"
        for path in saying(r"\.status\b", modules())
        if not named(path).startswith("facades/")
        for node in _worker_states(parsed(path))
    }
    assert found == set()
    seen = _worker_states(ast.parse('if row.status in ("active", "x"): pass\nmatch row.status:\n    case "lost": pass'))
    assert sorted(str(node.value) for node in seen) == ["active", "lost"]


def test_the_reader_sees_a_state_where_one_is_meant() -> None:
    text = """
if row.state in ("open", "x"): pass
match batch.state:
    case "ended" | "failed": pass
moved(state="pending")
state = "failed" if a else "completed"
mode = "streaming"
"""
    found = sorted(str(node.value) for node in _where_a_state_is_meant(ast.parse(text)))
    assert found == ["completed", "ended", "failed", "failed", "open", "pending"]


class Update:
    """One `update … set … where …` of a statement, as far as it concerns the state of its row."""

    def __init__(self, name: str, table: str, alias: str, changes: str, condition: str) -> None:
        self.name = name
        self.life = BY_TABLE.get(table)
        column = "state" if self.life is None else self.life.column
        self.targets = set(re.findall(rf"(?<![\w.]){column} = '(\w+)'", changes))
        own = rf"(?<![\w.])(?:(?:{alias}|{table})\.)?{column}"
        self.condition = condition
        self._own = own

    @property
    def sources(self) -> set[str]:
        """The states in which it finds its row, by its condition."""
        assert self.life is not None
        found = set(self.life.names)
        for text in re.findall(self._own + r" = '(\w+)'", self.condition):
            found &= {text}
        for listed in re.findall(self._own + r" in \(([^)]*)\)", self.condition):
            found &= set(re.findall(r"'(\w+)'", listed))
        for listed in re.findall(self._own + r" not in \(([^)]*)\)", self.condition):
            found -= set(re.findall(r"'(\w+)'", listed))
        for text in re.findall(self._own + r" <> '(\w+)'", self.condition):
            found -= {text}
        if re.search(self._own + r" is null", self.condition):
            found &= {state.value for state in self.life.derived}
        return found


def _statements(path: Path) -> Iterator[tuple[str, str]]:
    """The names and texts of the statements of a file, with the parts that they share, each on one line."""
    package = ".".join(("holdfast", *path.parent.relative_to(SOURCE).parts))
    for source in sources(path.name, package):
        code, quoted = masked(source.text)
        for text in unmasked(code, quoted).split(";"):
            yield f"{named(path)} {source.name} {source.dialect or ''}", " ".join(text.split())


def _updates(name: str, text: str) -> Iterator[Update]:
    pattern = (
        r"update holdfast\.(\w+)(?: as)?(?: (?!set\b)(\w+))? set (.*?)"
        r"(?: where (.*?))?(?= returning |\)? ?,? \w+ as \(|$)"
    )
    for match in re.finditer(pattern, text):
        table, alias, changes, condition = match.groups(default="")
        yield Update(name, table, alias or table, changes, condition)
    for match in re.finditer(r"into holdfast\.(\w+) .*? do update set (.*?) where (.*?)(?= returning |$)", text):
        yield Update(name, match[1], match[1], match[2], match[3])


def _around(text: str) -> str:
    """The text before a place, without the queries in parentheses that have ended there."""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def _said(text: str) -> Iterator[tuple[str, str]]:
    """Each text that a statement compares a state with or sets one to, and the table whose state it is."""
    tables = {alias: table for table, alias in re.findall(r"holdfast\.(\w+)(?: as)? (?!set\b|where\b|on\b)(\w+)", text)}
    tables |= {table: table for table in re.findall(r"holdfast\.(\w+)", text)}
    for match in re.finditer(r"(?:(\w+)\.)?\bstate,?(?: (?:=|<>) ('\w+')| (?:not )?in (\([^)]*\))|, '')", text):
        owner, one, several = match.groups(default="")
        near = re.findall(r"(?:from|update|into|join) holdfast\.(\w+)", _around(text[: match.start()]))
        table = tables.get(owner, "") if owner else near[-1]
        for value in re.findall(r"'(\w+)'", one + several):
            yield table, value


LOCKED_BEFORE = (" lose_workers ",)  # whose rows a query before has locked, in the states that it may end
SQL = [(name, text) for path in statements("agents") for name, text in _statements(path)]
OF_WORKERS = [(name, text) for path in statements() for name, text in _statements(path) if "holdfast.worker" in text]


def test_sql_names_states_of_its_table() -> None:
    known = {table: set(life.names) for table, life in BY_TABLE.items()} | KERNEL
    found = [(name, table, value) for name, text in SQL for table, value in _said(text)]
    assert len(found) > 60
    assert [each for each in found if each[2] not in known.get(each[1], ())] == []


def test_sql_names_states_of_workers() -> None:
    compared = r"\bstatus (?:=|<>) '(\w+)'|\bstatus (?:not )?in \(([^)]*)\)|\bcase status when '(\w+)'"
    found = [
        (name, value)
        for name, text in OF_WORKERS
        for match in re.finditer(compared, text)
        for value in re.findall(r"\w+", " ".join(match.groups(default="")))
    ]
    assert len(found) > 40
    assert [each for each in found if each[1] not in WORKER.names] == []


def test_an_update_of_a_state_is_a_move_of_its_table() -> None:
    changed = [
        each
        for name, text in {*SQL, *OF_WORKERS}
        for each in _updates(name, text)
        if each.targets and each.life is not None
    ]
    assert len(changed) > 20
    assert sum(each.life is WORKER for each in changed) > 5
    for update in changed:
        assert update.life is not None
        if update.name.endswith(LOCKED_BEFORE):  # the conformance tests try it in every state
            continue
        for source in update.sources:
            ways = {target for move in update.life.moves if move.source == source for target in move.targets}
            assert update.targets <= ways, f"{update.name}: {source} -> {update.targets}"


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_check_constraints_list_the_states_of_the_tables(dialect: Dialect) -> None:
    text = "\n".join(migration.up for migration in migrations(dialect))
    for table, life in BY_TABLE.items():
        constraint = rf"constraint {table}_{life.column} check\s+\({life.column} in\s+\(([^)]*)\)"
        listed = [*re.finditer(constraint, text)][-1:]
        if table == "turn":  # it was made without one, and a table that every worker writes is not made again for it
            assert not listed
            continue
        assert listed, table
        assert set(re.findall(r"'(\w+)'", listed[0][1])) == life.stored, table


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
@pytest.mark.parametrize(("constraint", "table"), [("run_finalized", "run"), ("batch_ended", "batch")])
def test_the_check_constraints_list_the_final_states(dialect: Dialect, constraint: str, table: str) -> None:
    text = "\n".join(migration.up for migration in migrations(dialect))
    listed = re.search(rf"constraint {constraint} check \(\(state in \(([^)]*)\)", text)
    assert listed is not None
    assert set(re.findall(r"'(\w+)'", listed[1])) == BY_TABLE[table].final


@pytest.mark.parametrize("life", [JOB, WORKER, *LIVES], ids=lambda life: life.table)
def test_every_verb_and_every_state_has_its_place_in_the_table(life: Life[Any, Any]) -> None:
    assert {move.verb for move in life.moves} == set(life.verbs.__members__.values())
    reached = {*life.born} | {target for move in life.moves for target in move.targets}
    assert reached == set(life.states.__members__.values())
    pairs = [(move.source, move.verb) for move in life.moves]
    assert len(set(pairs)) == len(pairs)


def test_a_verb_of_jobs_names_its_statement_and_its_function() -> None:
    """So that one search finds the move in the table, the call and the SQL."""
    declared = {name for group in GROUPS for name in group.declared}
    functions = {
        node.name.lstrip("_")
        for path in modules("kernel")
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    moves = {*Verb} - OUTCOMES
    assert {verb.value for verb in moves} - declared == set()
    assert {verb.value for verb in moves} - functions == set()
    assert not {verb.value for verb in OUTCOMES} & declared, "it has a statement of its own: it is no exception"


def test_a_person_is_offered_what_the_table_allows() -> None:
    offered = {(life.table, state): life.offered(state) for life in LIVES for state in life.states}
    assert offered["run", "streaming"] == ("interrupt", "cancel")
    assert offered["run", "completed"] == ()
    assert offered["inquiry", "open"] == ("approve", "deny", "answer")
    assert offered["inquiry", "approved"] == ()
    assert offered["compaction", "done"] == ("restore",)
    assert BY_TABLE["run"].offered("a state of a newer release") == ()


def test_type_checkers_know_the_states_of_the_tables() -> None:
    known = {name: get_args(value) for name, value in vars(states).items() if name.endswith("StateName")}
    assert known == {f"{life.states.__name__}Name": tuple(life.names) for life in LIVES}
    assert get_args(StateName) == tuple(State)
