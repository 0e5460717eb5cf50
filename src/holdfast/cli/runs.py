"""`holdfast runs`: list and show them, follow one, say what it waits for, cancel it."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from holdfast.agents.money.budgets import usd
from holdfast.agents.people.face import Inquiry
from holdfast.agents.reading import Turn
from holdfast.agents.records import CallRow, RunRow
from holdfast.agents.states import RUN_STATES
from holdfast.agents.streams import ENDED
from holdfast.app import Holdfast
from holdfast.cli import cassettes, deciding, forks
from holdfast.cli.options import (
    app_for,
    ask,
    json_option,
    moment,
    plain,
    print_json,
    print_pairs,
    print_table,
    readable,
    run_until_interrupted,
    url_option,
)
from holdfast.cli.speaking import Speaker, event_dict
from holdfast.errors import StoreRefused
from holdfast.kernel import encoding

_STORED = ("input", "variables", "metadata", "options", "output", "refusal")


class Shown(NamedTuple):
    """All that is shown of one run."""

    row: RunRow
    turns: list[Turn]
    calls: list[CallRow]
    asked: list[Inquiry]
    origin: tuple[str, int] | None


@click.group()
def command() -> None:
    """List, show, follow, decide about, fork and cancel runs."""


@command.command()
@click.option("--state", type=click.Choice(RUN_STATES), help="Only runs in this state.")
@click.option("--agent", help="Only runs of this agent, by name or id.")
@click.option("--session", help="Only runs of this session, by its id or key.")
@click.option("--tenant", help="Only runs of this tenant.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@url_option
@json_option
def ls(url: str | None, as_json: bool, **filters: Any) -> None:
    """List runs, newest first."""
    rows = ask(url, lambda app: app.runs.list(**filters))
    if as_json:
        print_json([as_dict(row) for row in rows])
        return
    print_table(
        ["ID", "AGENT", "STATE", "OUTCOME", "TURNS", "TOKENS", "COST", "CREATED"],
        [
            (
                row.id,
                row.agent_name,
                row.state,
                row.outcome or row.error_type or "-",
                row.turns,
                f"{row.input_tokens + row.output_tokens:,}",
                usd(row.cost_nano),
                moment(row.created_at),
            )
            for row in rows
        ],
        empty="no runs",
    )


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one run, whole: its turns, its tool calls, what it asks of people, and what it said."""

    async def found(app: Holdfast) -> Shown:
        run = app.runs[id]
        row, origin = await run.refresh(), await run.forked_from()
        return Shown(row, await run.turns(), await run.calls(), await run.inquiries(), origin)

    row, turns, calls, asked, origin = ask(url, found)
    if as_json:
        shown = as_dict(row)
        shown["turn_list"] = [turn_dict(turn) for turn in turns]
        shown["calls"] = [call_dict(call) for call in calls]
        shown["inquiries"] = [deciding.inquiry_dict(each) for each in asked]
        shown["forked_from"], shown["forked_at"] = origin or (None, None)
        print_json(shown)
        return
    stored = encoding.decode(row.output) or {}
    print_pairs(
        {
            **{name: getattr(row, name) for name in ("id", "state", "mode", "outcome", "agent_name", "version")},
            **{name: getattr(row, name) for name in ("session", "tenant", "parent", "depth", "turns")},
            **{name: getattr(row, name) for name in ("stop_reason", "limited")},
            "refused as": (encoding.decode(row.refusal) or {}).get("category"),
            "forked_from": origin and f"{origin[0]}, at turn {origin[1]}",
            "cost": f"{usd(row.cost_nano)} USD",
            "tokens": f"{row.input_tokens:,} in, {row.output_tokens:,} out, {row.cache_read_tokens:,} from the cache",
            "created_at": moment(row.created_at),
            "finalized_at": moment(row.finalized_at),
            "error": row.error and plain(f"{row.error_type}: {row.error}"),
        }
    )
    for turn in turns:
        again = f", {turn.attempts} attempts, {turn.unknown} of unknown outcome" if turn.attempts > 1 else ""
        click.echo(f"\nturn {turn.number}: {turn.state}, {turn.stop_reason or '-'}, {turn.model}{again}")
        for call in calls:
            if call.turn == turn.number:
                click.echo(plain(f"  {call.name}({call.input}): {call.state}, {str(call.output)[:200]}"))
    for each in asked:
        click.echo(plain(f"\nasks a person: {each.kind} of {deciding.about(each)}"))
        click.echo(f"  inquiry {each.id}\n  digest {each.digest}")
    if stored.get("text"):
        click.echo("\n" + "\n".join(plain(line) for line in str(stored["text"]).splitlines()))


@command.command()
@click.argument("id")
@click.option("--after", type=int, default=0, help="Begin behind the event of this number.")
@url_option
@json_option
def tail(id: str, after: int, url: str | None, as_json: bool) -> None:
    """Follow a run from its beginning until it has ended; Ctrl-C ends it."""

    async def follow() -> None:
        async with app_for(url) as app:
            speaker = Speaker(url=url)
            async for event in app.runs[id].stream(after):
                if as_json:
                    click.echo(encoding.encode(event_dict(event), what="an event", cap=1 << 28))
                else:
                    speaker.hear(event)

    run_until_interrupted(follow())


@command.command()
@click.argument("id")
@url_option
@json_option
def why(id: str, url: str | None, as_json: bool) -> None:
    """Say what a run waits for."""
    said = ask(url, lambda app: app.why(id))
    if as_json:
        print_json({"id": id, "why": said})
    else:
        click.echo(plain(said) or "nothing keeps it: a worker will take it next")


@command.command()
@click.argument("id")
@click.option("--reason", default="cancelled by hand", show_default=True, help="What the run will say of it.")
@url_option
@json_option
def cancel(id: str, reason: str, url: str | None, as_json: bool) -> None:
    """Cancel a run, its tool calls and every run below it; one that has ended is an error."""
    state = ask(url, lambda app: app.runs[id].cancel(reason))
    if state in ENDED and state != "cancelled":
        raise StoreRefused(f"run {id} has ended, as {state}: there is nothing to cancel.")
    if as_json:
        print_json({"id": id, "state": state})
    else:
        click.echo(f"run {id} is {state}" + ("" if state == "cancelled" else ": its worker was asked to stop"))


for _deciding in (deciding.inquiries, deciding.approve, deciding.deny, deciding.answer):
    command.add_command(_deciding)
command.add_command(cassettes.cassette)
for _forking in (forks.fork, forks.export, forks.compare, forks.replay):
    command.add_command(_forking)


def as_dict(row: RunRow) -> dict[str, Any]:
    return readable(row._asdict(), encoding.decode, texts=_STORED)


def turn_dict(turn: Turn) -> dict[str, Any]:
    return readable(turn._asdict(), encoding.decode, texts=()) | {"usage": turn.usage._asdict()}


def call_dict(row: CallRow) -> dict[str, Any]:
    return readable(row._asdict(), encoding.decode, texts=("input", "output"))
