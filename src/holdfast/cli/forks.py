"""`holdfast runs fork`, `export`, `compare` and `replay`, and `holdfast sessions fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.agents.conversation import Session
from holdfast.agents.forks.comparing import Comparison, as_dict
from holdfast.agents.handles import Run
from holdfast.agents.money.budgets import usd
from holdfast.agents.records import CallRow
from holdfast.app import Holdfast
from holdfast.cli.options import (
    ask,
    json_option,
    plain,
    print_json,
    print_table,
    seen_by,
    tenant_option,
    url_option,
)
from holdfast.durations import show
from holdfast.errors import UsageError

_FACTS = {
    "cache_write_tokens": "tokens to the cache",
    "cache_read_tokens": "tokens from the cache",
    "cost_nano": "cost (USD)",
    "duration_us": "duration",
}


@click.command()
@click.argument("id")
@click.option("--at", type=click.IntRange(1), help="The turn that is played first; default: the first one.")
@click.option("--prompt", help="Ask this instead.")
@click.option("--model", help="Ask this model instead.")
@click.option("--result", "results", multiple=True, metavar="CALL=TEXT", help="What a call, by id or tool, returned.")
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
    help="How the model is asked, however the run was.",
)
@click.option("--key", help="Doing it again with this key gives the same fork.")
@url_option
@json_option
def fork(id: str, results: tuple[str, ...], url: str | None, as_json: bool, **options: Any) -> None:
    """Play a run again from one of its turns, in a session of its own, with something different."""
    changed = dict(_pair(each) for each in results)

    async def forked(app: Holdfast) -> Run[Any]:
        return await app.runs[id].fork(results=changed, **options)

    made = ask(url, forked)
    if as_json:
        print_json({"id": made.id, "session": made.session_id, "forked_from": id})
    else:
        click.echo(f"run {made.id} goes on from run {id}: `holdfast runs tail {made.id}` follows it")


@click.command()
@click.argument("id")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file.")
@click.option("--redact", multiple=True, metavar="REGEX", help="What else is a secret.")
@click.option("--partial", is_flag=True, help="Also when the run has not ended: what there is of it.")
@url_option
@json_option
def export(  # noqa: PLR0917  the options of the command
    id: str, output: Path, redact: tuple[str, ...], partial: bool, url: str | None, as_json: bool
) -> None:
    """Write a run as one SQLite file, without secrets, that another machine can open and replay."""
    written = ask(url, lambda app: app.runs[id].export(output, redact=redact, partial=partial))
    if as_json:
        print_json({**written._asdict(), "path": str(written.path)})
    else:
        what = f"{written.runs} runs, {written.messages} messages, {written.redactions} secrets taken out"
        click.echo(f"{written.path}: {what}")


@click.command()
@click.argument("a")
@click.argument("b")
@url_option
@json_option
def compare(a: str, b: str, url: str | None, as_json: bool) -> None:
    """Show two runs side by side: how they ended, what they called and used, and how their answers differ."""
    found = ask(url, lambda app: app.runs.compare(a, b))
    if as_json:
        print_json(as_dict(found))
    else:
        print_comparison(found)


@click.command()
@click.argument("id")
@click.pass_context
@url_option
@json_option
def replay(ctx: click.Context, id: str, url: str | None, as_json: bool) -> None:
    """Play a run again from its record, without a key, a network or its tools; exit 1 when it went another way."""
    played = ask(url, lambda app: app.replay(id))
    if as_json:
        requests = {"same": played.same_requests, "known": played.known_requests}
        told = {"turns": played.turns, "requests": requests, "differences": list(played.differences)}
        print_json({"id": id, "same": played.same, **told, "comparison": as_dict(played.comparison)})
    elif played.same:
        asked = f", {played.same_requests} of them asked byte for byte" if played.known_requests else ""
        click.echo(f"the same: {played.turns} turns{asked}")
    else:
        for difference in played.differences:
            click.echo(plain(difference))
    ctx.exit(0 if played.same else 1)


@click.command(name="fork")
@click.argument("id")
@click.option("--at", type=click.IntRange(1), help="The last message that is taken along; default: all of them.")
@click.option("--key", help="The key of the new session; doing it again gives the same one.")
@tenant_option
@url_option
@json_option
def fork_session(  # noqa: PLR0917  the options of the command
    id: str, at: int | None, key: str | None, tenant: str | None, url: str | None, as_json: bool
) -> None:
    """Copy a session, by its id or key, into a new one that goes its own way."""

    async def forked(app: Holdfast) -> Session:
        return await seen_by(app, tenant).sessions[id].fork(at, key=key)

    made = ask(url, forked)
    if as_json:
        print_json({"id": made.id, "key": made.key})
    else:
        click.echo(f"session {made.id}")


def print_comparison(found: Comparison) -> None:
    """For people: what is the same is said once."""
    rows = [
        (_FACTS.get(fact.name, fact.name.replace("_", " ")), _shown(fact.name, fact.a), _shown(fact.name, fact.b))
        for fact in found.facts
    ]
    marked = [(*row, "" if row[1] == row[2] else "*") for row in rows]
    print_table(["", found.a.run.id, found.b.run.id, ""], marked, empty="")
    if found.calls:
        click.echo()
    for pair in found.calls:
        click.echo(f"{pair.mark} {_called(pair.a or pair.b)}")
    click.echo()
    for line in found.diff or ["the answers are the same"]:
        click.echo(plain(line))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "cost_nano":
        return usd(value)
    if name == "duration_us":
        return show(value // 1_000 * 1_000)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _called(call: CallRow | None) -> str:
    return "" if call is None else plain(f"{call.turn}: {call.name}({call.input})")


def _pair(text: str) -> tuple[str, str]:
    call, separator, output = text.partition("=")
    if not separator:
        raise UsageError(f"--result takes CALL=TEXT, not {text!r}.")
    return call, output
