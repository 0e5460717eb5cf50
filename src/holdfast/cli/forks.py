"""`holdfast runs fork`, `export`, `compare` and `replay`, and `holdfast sessions fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.capsules.capsules import Exported
from holdfast.agents.capsules.replay import Replay
from holdfast.agents.forks.comparison import Comparison, as_dict
from holdfast.agents.money.budgets import usd
from holdfast.agents.values import CallRecord
from holdfast.app import Holdfast
from holdfast.cli.options import (
    ask,
    json_option,
    print_json,
    reason_option,
    seen_by,
    tenant_option,
    text_of,
    url_option,
)
from holdfast.cli.short_ids import whole, whole_session
from holdfast.cli.tables import Column, TableStyle, cell_text, look_at, print_table
from holdfast.cli.target import repeated
from holdfast.durations import show
from holdfast.errors import UsageError
from holdfast.text import escaped, plural

_FACTS = {
    "cache_write_tokens": "tokens to the cache",
    "cache_read_tokens": "tokens from the cache",
    "cost_nano": "cost (USD)",
    "duration_us": "duration",
}


@click.command()
@click.argument("id")
@click.option("--at", type=click.IntRange(1), help="The turn to start from; default: the first one.")
@click.option("--prompt", help="Ask this instead.")
@click.option("--model", help="Ask this model instead.")
@click.option("--result", "results", multiple=True, metavar="CALL=TEXT", help="Replace a call's result.")
@click.option(
    "--tools",
    type=click.Choice(["recorded", "ask", "live"]),
    default="recorded",
    show_default=True,
    help="Calls with an effect: answer them from the record, ask a person, or run them.",
)
@click.option(
    "--mode",
    type=click.Choice(["streaming", "batch"]),
    default="streaming",
    show_default=True,
    help="How to call the model, whatever the run used.",
)
@click.option("--key", help="The same key gives the same fork again.")
@url_option
@json_option
def fork(id: str, results: tuple[str, ...], url: str | None, as_json: bool, **options: Any) -> None:
    """Repeat a run from one of its turns, in a new session, with something changed."""
    changed = dict(_pair(each) for each in results)

    async def forked(app: Holdfast) -> Run[Any]:
        return await app.runs[await whole(app, id, "run")].fork(results=changed, **options)

    made = ask(url, forked)
    if as_json:
        print_json({"id": made.id, "session": made.session_id, "forked_from": id})
    else:
        click.echo(
            f"run {made.id} continues from run {id}; follow it with `holdfast runs tail {made.id}{repeated(url)}`"
        )


@click.command()
@click.argument("id")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file.")
@click.option("--redact", multiple=True, metavar="REGEX", help="Also remove what matches this.")
@click.option("--partial", is_flag=True, help="Export a run that has not ended, as far as it got.")
@url_option
@json_option
def export(  # noqa: PLR0917  the options of the command
    id: str, output: Path, redact: tuple[str, ...], partial: bool, url: str | None, as_json: bool
) -> None:
    """Export a run, without secrets, as one SQLite file that another machine can open and replay."""

    async def exported(app: Holdfast) -> Exported:
        return await app.runs[await whole(app, id, "run")].export(output, redact=redact, partial=partial)

    written = ask(url, exported)
    if as_json:
        print_json({**written._asdict(), "path": str(written.path)})
    else:
        what = f"{plural(written.runs, 'run')}, {plural(written.messages, 'message')}"
        click.echo(f"{written.path}: {what}, {plural(written.redactions, 'secret')} removed")


@click.command()
@click.argument("a")
@click.argument("b")
@url_option
@json_option
def compare(a: str, b: str, url: str | None, as_json: bool) -> None:
    """Show two runs side by side: how they ended, what they called and used, and how their answers differ."""

    async def compared(app: Holdfast) -> tuple[Comparison, TableStyle]:
        found = await app.runs.compare(await whole(app, a, "run"), await whole(app, b, "run"))
        return found, await look_at(app, [Column("", of="run")], [(found.a.run.id,), (found.b.run.id,)])

    found, look = ask(url, compared)
    if as_json:
        print_json(as_dict(found))
    else:
        print_comparison(found, look)


@click.command()
@click.argument("id")
@click.pass_context
@url_option
@json_option
def replay(ctx: click.Context, id: str, url: str | None, as_json: bool) -> None:
    """Replay a run from its record, without a key, a network or its tools; exit code 1 if it differs."""

    async def replayed(app: Holdfast) -> Replay:
        return await app.runs.replay(await whole(app, id, "run"))

    played = ask(url, replayed)
    if as_json:
        requests = {"same": played.same_requests, "known": played.known_requests}
        counts = {"turns": played.turns, "requests": requests, "differences": list(played.differences)}
        print_json({"id": id, "same": played.same, **counts, "comparison": as_dict(played.comparison)})
    elif played.same:
        asked = f", {played.same_requests} of them asked byte for byte" if played.known_requests else ""
        click.echo(f"the same: {plural(played.turns, 'turn')}{asked}")
    else:
        for difference in played.differences:
            click.echo(escaped(difference))
    ctx.exit(0 if played.same else 1)


@click.command(name="fork")
@click.argument("id")
@click.option("--at", type=click.IntRange(1), help="The last message to copy; default: all of them.")
@click.option("--key", help="The key of the new session; the same key gives the same session again.")
@tenant_option
@reason_option
@url_option
@json_option
def fork_session(  # noqa: PLR0917  the options of the command
    id: str, at: int | None, key: str | None, tenant: str | None, url: str | None, as_json: bool
) -> None:
    """Copy a session, by its id or key, into a new, independent one."""

    async def forked(app: Holdfast) -> Session:
        return await seen_by(app, tenant).sessions[await whole_session(app, id, tenant)].fork(at, key=key)

    made = ask(url, forked)
    if as_json:
        print_json({"id": made.id, "key": made.key})
    else:
        click.echo(f"session {made.id}")


def print_comparison(found: Comparison, look: TableStyle) -> None:
    """For people: what is the same is said once."""
    rows = [
        (_FACTS.get(fact.name, fact.name.replace("_", " ")), _shown(fact.name, fact.a), _shown(fact.name, fact.b))
        for fact in found.facts
    ]
    marked = [(*row, "" if row[1] == row[2] else "*") for row in rows]
    heads = [cell_text(Column("", of="run"), each.run.id, look) for each in (found.a, found.b)]
    print_table([Column(""), *map(Column, heads), Column("")], marked, look, empty="")
    if found.calls:
        click.echo()
    for pair in found.calls:
        click.echo(f"{pair.mark} {_called(pair.a or pair.b)}")
    click.echo()
    for line in found.diff or ["the answers are the same"]:
        click.echo(escaped(line))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "cost_nano":
        return usd(value)
    if name == "duration_us":
        return show(value // 1_000 * 1_000)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _called(call: CallRecord | None) -> str:
    return "" if call is None else escaped(f"{call.turn}: {call.name}({text_of(call.input)})")


def _pair(text: str) -> tuple[str, str]:
    call, separator, output = text.partition("=")
    if not separator:
        raise UsageError(f"--result takes CALL=TEXT; got {text!r}.")
    return call, output
