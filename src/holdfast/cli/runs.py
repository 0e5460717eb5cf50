"""`holdfast runs`: list and show them, follow one, say what it waits for, enqueue it again, cancel it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast import values
from holdfast.agents.events.reader import ENDED
from holdfast.agents.money.budgets import usd
from holdfast.agents.states import RUN
from holdfast.agents.values import CallRecord, Inquiry, RunRecord, Turn
from holdfast.app import Holdfast
from holdfast.cli import forks, inquiries
from holdfast.cli.jobs import print_failure, print_why, raised_by
from holdfast.cli.options import (
    after_option,
    all_of,
    app_for,
    as_tenant_option,
    ask,
    json_option,
    limit_option,
    moment,
    print_json,
    print_pairs,
    run_until_interrupted,
    seen_by,
    text_of,
    url_option,
)
from holdfast.cli.run import RunPrinter, event_dict
from holdfast.cli.short_ids import whole, whole_agent, whole_session
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.cli.target import repeated
from holdfast.errors import StoreRefused
from holdfast.kernel import codec
from holdfast.text import escaped, escaped_lines, first_line, plural, shown, shown_value
from holdfast.values.jobs import Why

# `holdfast runs cassette`: a stored run as a file that a script plays in tests.


@click.command()
@click.argument("id")
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Where to write it."
)
@url_option
@json_option
def cassette(id: str, output: Path, url: str | None, as_json: bool) -> None:
    """Record a run and the runs below it for Script.cassette(FILE), without anything that looks like a secret."""

    async def recorded(app: Holdfast) -> str:
        named = await whole(app, id, "run")
        await app.runs[named].cassette(output)
        return named

    id = ask(url, recorded)
    if as_json:
        print_json({"id": id, "cassette": str(output)})
    else:
        click.echo(f"{output} has run {id}; look through it before you share it")


_RUNS = Listing(
    "runs",
    "Start one: `holdfast run AGENT TEXT`, or `await your_agent.enqueue(…)` in your program.",
    (
        Column("ID", "id", of="run"),
        Column("AGENT", "name"),
        Column("STATE", "state"),
        Column("OUTCOME", "state", rank=1),
        Column("TURNS", "number", rank=3),
        Column("TOKENS", "number", rank=4),
        Column("COST", "money"),
        Column("CREATED", "time", rank=2),
    ),
)


class RunReport(NamedTuple):
    """All that is shown of one run."""

    row: RunRecord
    turns: list[Turn]
    calls: list[CallRecord]
    asked: list[Inquiry]
    origin: tuple[str, int] | None
    raised: dict[str, Any]  # by the id of the run or call


@click.group()
def command() -> None:
    """List, show, follow, explain, decide about, retry, fork and cancel runs."""


@command.command()
@click.option("--state", type=click.Choice(RUN.names), help="Only runs in this state.")
@click.option("--agent", help="Only runs of this agent, by name or id.")
@click.option("--session", help="Only runs of this session, by its id or key.")
@click.option("--tenant", help="Only runs of this tenant.")
@limit_option
@after_option
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool, **filters: Any) -> None:
    """List runs, newest first."""

    async def listed(app: Holdfast) -> values.Page[RunRecord]:
        agent = filters["agent"] and await whole_agent(app, filters["agent"], filters["tenant"])
        session = filters["session"] and await whole_session(app, filters["session"], filters["tenant"])
        return await app.runs.list(**{**filters, "agent": agent, "session": session})

    print_list(
        url,
        listed,
        _RUNS,
        lambda row: (
            *(row.id, row.agent_name, row.state, row.outcome or row.error_type, row.turns),
            *(f"{row.input_tokens + row.output_tokens:,}", usd(row.cost_nano), row.created_at),
        ),
        filtered=any(filters[name] for name in ("state", "agent", "session", "tenant", "after")),
        as_json=as_json,
        wide=wide,
    )


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one run with its turns, its tool calls, its inquiries and its answer."""

    async def found(app: Holdfast) -> RunReport:
        run = app.runs[await whole(app, id, "run")]
        row, origin, calls = await run.refresh(), await run.forked_from(), await all_of(run.calls)
        failed = [row.id] if row.error else []
        failed += [call.id for call in calls if call.is_error and call.child is None]
        raised = {} if as_json else {each: await raised_by(app, each) for each in failed}
        return RunReport(row, await all_of(run.turns), calls, await all_of(run.inquiries), origin, raised)

    row, turns, calls, asked, origin, raised = ask(url, found)
    if as_json:
        forked_from, forked_at = origin or (None, None)
        below = {"turn_list": turns, "calls": calls, "inquiries": asked}
        print_json({**values.as_json(row), **below, "forked_from": forked_from, "forked_at": forked_at})
        return
    stored = row.output or {}
    print_pairs(
        {
            **{name: getattr(row, name) for name in ("id", "state", "mode", "outcome", "agent_name", "version")},
            **{name: getattr(row, name) for name in ("session", "tenant", "parent", "depth", "turns")},
            **{name: getattr(row, name) for name in ("stop_reason", "limited")},
            "refused as": (row.refusal or {}).get("category"),
            "forked_from": origin and f"{origin[0]}, at turn {origin[1]}",
            "cost": f"{usd(row.cost_nano)} USD",
            "tokens": f"{row.input_tokens:,} in, {row.output_tokens:,} out, {row.cache_read_tokens:,} from the cache",
            "created_at": moment(row.created_at),
            "finalized_at": moment(row.finalized_at),
            "error": row.error and f"{row.error_type}: {row.error}",
        }
    )
    for turn in turns:
        again = f", {plural(turn.attempts, 'attempt')}, {turn.unknown} of unknown outcome" if turn.attempts > 1 else ""
        click.echo(f"\nturn {turn.number}: {turn.state}, {turn.stop_reason or '-'}, {turn.model}{again}")
        for call in calls:
            if call.turn == turn.number:
                given = text_of(shown_value(call.input))
                click.echo(f"  {shown(call.name)}({escaped(given)}): {call.state}, {_answer(call)}")
    for call in calls:
        print_failure(f"{call.name} in turn {call.turn}", raised.get(call.id))
    print_failure("error", raised.get(row.id))
    for each in asked:
        click.echo("\nasks a person: " + escaped(f"{each.kind} of {inquiries.about(each)}"))
        click.echo(f"  inquiry {each.id}\n  digest {each.digest}")
    if stored.get("text"):
        click.echo("\n" + escaped_lines(str(stored["text"])))


def _answer(call: CallRecord) -> str:
    """The beginning of what the model was given. The traceback of a call that failed stands below the turns."""
    said = call.output
    if call.is_error and isinstance(said, dict) and "message" in said:
        return shown(first_line(str(said["message"])))
    return shown(text_of(said))[:200]


@command.command()
@click.argument("id")
@click.option("--after", type=int, default=0, help="Start after the event with this number.")
@url_option
@json_option
def tail(id: str, after: int, url: str | None, as_json: bool) -> None:
    """Follow a run from its beginning until it ends; Ctrl-C stops following."""

    app = app_for(url)

    async def follow() -> None:
        async with app:
            speaker = RunPrinter(where=repeated(url))
            async for event in app.runs[await whole(app, id, "run")].stream(after):
                if as_json:
                    click.echo(codec.encode(event_dict(event), what="an event", cap=1 << 28))
                else:
                    speaker.hear(event)

    run_until_interrupted(follow())


@command.command()
@click.argument("id")
@as_tenant_option
@url_option
@json_option
def why(id: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Explain why a run does not continue: what it waits for, who runs it, or how it ended."""

    async def asked(app: Holdfast) -> Why:
        return await seen_by(app, tenant).why(await whole(app, id, "run", "job"))

    print_why(ask(url, asked), as_json=as_json)


@command.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@url_option
@json_option
def retry(ids: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Enqueue ended runs again, each as a new run that names the old one.

    The new run has the same prompt and options, in the same session. The agent is asked in its present version.
    """

    async def enqueue_again(app: Holdfast) -> list[tuple[str, str]]:
        named = [await whole(app, id, "run") for id in ids]
        return [(id, (await app.runs.retry(id)).id) for id in named]

    made = ask(url, enqueue_again)
    if as_json:
        print_json([{"id": new, "retry_of": old} for old, new in made])
        return
    for old, new in made:
        click.echo(f"{old} is enqueued again as {new}")


@command.command()
@click.argument("id")
@click.option("--reason", default="cancelled by hand", show_default=True, help="The reason to store with the run.")
@url_option
@json_option
def cancel(id: str, reason: str, url: str | None, as_json: bool) -> None:
    """Cancel a run, its tool calls and every run below it. A run that has already ended is an error."""

    async def cancelled(app: Holdfast) -> tuple[str, str]:
        named = await whole(app, id, "run")
        return named, await app.runs[named].cancel(reason)

    id, state = ask(url, cancelled)
    if state in ENDED and state != "cancelled":
        raise StoreRefused(f"run {id} has already ended as {state}: there is nothing to cancel.")
    if as_json:
        print_json({"id": id, "state": state})
    else:
        click.echo(f"run {id} is {state}" + ("" if state == "cancelled" else ": its worker was asked to stop"))


for _deciding in (inquiries.inquiries, inquiries.approve, inquiries.deny, inquiries.answer):
    command.add_command(_deciding)
command.add_command(cassette)
for _forking in (forks.fork, forks.export, forks.compare, forks.replay):
    command.add_command(_forking)
