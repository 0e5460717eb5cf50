"""`holdfast sql`: the statements of the runtime, as each database gets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import click

from holdfast.access import records as of_access
from holdfast.agents import statements as of_agents
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.cli.tables import Column, TableStyle, on_terminal, print_table, terminal_width, wide_option
from holdfast.cli.target import settings_for
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import statements as of_kernel
from holdfast.kernel.drivers.facts import plan_of
from holdfast.kernel.sql import Dialect, Rendered, Statement, Statements, catalogue, groups_of, sources
from holdfast.resp import records as of_resp
from holdfast.validation import did_you_mean

_COLUMNS = (
    Column("NAME", least=20),
    Column("FILE", least=20),
    Column("ANSWER", least=4),
    Column("TEXTS", "number"),
)
_ANSWERS = {"many": "rows", "one": "a row", "exec": "nothing"}


class NamedStatement(NamedTuple):
    """A statement, and what its file says of it."""

    group: type[Statements]
    statement: Statement
    reason: Mapping[Dialect, str]  # the comment before each text
    texts: int

    @property
    def file(self) -> str:
        """Where it is, from the root of the package."""
        return "/".join((*self.group.package.split(".")[1:], self.group.file))

    @property
    def long_name(self) -> str:
        return f"{self.group.file.removesuffix('.sql')}.{self.statement.name}"

    def rendered(self, dialect: Dialect, schema: str) -> Rendered:
        return catalogue((self.group,), dialect, schema)[self.statement]


@click.command()
@click.argument("name", required=False)
@click.option("--explain", is_flag=True, help="Print its plan on the database, for values that are not known.")
@url_option
@wide_option
@json_option
def command(name: str | None, url: str | None, explain: bool, as_json: bool, wide: bool) -> None:
    """Print a statement of Holdfast as each database gets it. Without NAME, list all statements.

    Where two files have a statement of one name, say FILE.NAME. With --explain, print what your own database gets, and
    how it would run it; nothing is run. In a shell of SQLite, now_us() and hint() are missing: Holdfast adds them.
    """
    if name is None:
        if explain:
            raise UsageError("--explain takes the name of a statement; `holdfast sql` lists them.")
        _print_list(as_json, TableStyle(terminal=on_terminal(), width=terminal_width(), wide=wide))
        return
    found = _find(name)
    schema = settings_for(url).schema
    if explain:

        async def plan(app: Holdfast) -> tuple[Dialect, list[str]]:
            database = await core_of(app).opened()
            return database.dialect, await plan_of(database, found.rendered(database.dialect, schema))

        own, steps = ask(url, plan, changes=False)
        shown, plans = (own,), {own: steps}
    else:
        shown, plans = get_args(Dialect)[::-1], {}
    if as_json:
        print_json(_as_json(found, shown, schema, plans))
        return
    click.echo(
        f"-- {found.statement.name}, from {found.file}; it answers with {_ANSWERS[found.statement.cardinality]}."
    )
    for dialect in shown:
        click.echo()
        for line in _lines(found, dialect, schema):
            click.echo(line)
        for step in plans.get(dialect, ()):
            click.echo(f"-- {step}")


def _as_json(
    found: NamedStatement, shown: Sequence[Dialect], schema: str, plans: Mapping[Dialect, list[str]]
) -> dict[str, Any]:
    said: dict[str, Any] = {**_summary(found)}
    for dialect in shown:
        rendered = found.rendered(dialect, schema)
        said[dialect] = {
            "texts": [_tidied(text) for text in rendered.texts],
            "parameters": _parameters(found, rendered, dialect),
            **({"plan": plans[dialect]} if dialect in plans else {}),
        }
    return said


def _summary(found: NamedStatement) -> dict[str, Any]:
    return {
        "name": found.statement.name,
        "file": found.file,
        "cardinality": found.statement.cardinality,
        "texts": found.texts,
    }


def _print_list(as_json: bool, look: TableStyle) -> None:
    known = sorted(_statements(), key=lambda each: (each.file, each.statement.name))
    if as_json:
        print_json([_summary(each) for each in known])
        return
    rows = [(each.statement.name, each.file, _ANSWERS[each.statement.cardinality], each.texts) for each in known]
    print_table(_COLUMNS, rows, look, empty="")


def _statements() -> Iterator[NamedStatement]:
    groups = [*of_kernel.GROUPS, *of_agents.GROUPS, *of_access.GROUPS, *groups_of(of_resp.__name__)]
    for group in groups:
        reasons: dict[str, dict[Dialect, str]] = {}
        for source in sources(group.file, group.package):
            lines = source.text.splitlines()
            said = [line for line in lines[: _code(lines)] if line.startswith("--")]
            for dialect in get_args(Dialect) if source.dialect is None else (source.dialect,):
                reasons.setdefault(source.name, {})[dialect] = "\n".join(said)
        written = [source.name for source in sources(group.file, group.package)]
        for name, statement in group.declared.items():
            yield NamedStatement(group, statement, reasons[name], written.count(name))


def _code(lines: Sequence[str]) -> int:
    """Where the comment before a statement ends."""
    return next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))


def _find(name: str) -> NamedStatement:
    known = [*_statements()]
    found = [each for each in known if name in (each.statement.name, each.long_name)]
    if not found:
        names = [each.statement.name for each in known]
        raise NotFound(f"there is no statement {name!r}.{did_you_mean(name, names)} `holdfast sql` lists them.")
    if len(found) > 1:
        raise UsageError(f"several files have a statement {name!r}: {', '.join(each.long_name for each in found)}.")
    return found[0]


def _lines(found: NamedStatement, dialect: Dialect, schema: str) -> Iterator[str]:
    rendered = found.rendered(dialect, schema)
    yield f"-- on {dialect}"
    if reason := found.reason[dialect]:
        yield reason
    names = _parameters(found, rendered, dialect)
    if dialect == "postgres" and names:
        yield f"-- {', '.join(f'${number} {name}' for number, name in enumerate(names, 1))}"
    elif dialect == "sqlite":
        for name in filter(found.group.rows.__contains__, names):
            yield f"-- :{name} is a JSON list, and each of its items a list: {', '.join(found.group.rows[name])}"
    for text in rendered.texts:
        yield f"{_tidied(text)};"


def _parameters(found: NamedStatement, rendered: Rendered, dialect: Dialect) -> list[str]:
    """What they are called. PostgreSQL gets each column of a list of records, with the list's name before a dot."""
    if dialect == "sqlite":
        return [*dict.fromkeys(name for name, _ in rendered.parameters)]
    rows = found.group.rows
    return [name if field is None else f"{name}.{rows[name][field]}" for name, field in rendered.parameters]


def _tidied(text: str) -> str:
    """Without the lines that had comments."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
