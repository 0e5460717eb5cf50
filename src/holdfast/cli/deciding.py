"""`holdfast runs inquiries/approve/deny/answer`: what people are asked, and what they say."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from holdfast.agents.people.face import Inquiry
from holdfast.cli.options import ask, json_option, moment, plain, print_json, print_table, readable, url_option
from holdfast.errors import UsageError
from holdfast.kernel import encoding

by_option = click.option("--by", default="", help="Who decides.")
digest_option = click.option("--digest", help="Refuse when what was shown is not what is decided.")


@click.command()
@click.option("--run", help="Of this run alone.")
@click.option("--tenant", help="Of this tenant alone.")
@click.option("--all", "everything", is_flag=True, help="Decided ones too.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@url_option
@json_option
def inquiries(
    *, run: str | None, tenant: str | None, everything: bool, limit: int, url: str | None, as_json: bool
) -> None:
    """List what people are asked, the oldest first."""
    state = None if everything else "open"
    rows = ask(url, lambda app: app.inquiries.list(state=state, run=run, tenant=tenant, limit=limit))
    if as_json:
        print_json([inquiry_dict(row) for row in rows])
        return
    print_table(
        ["ID", "KIND", "STATE", "BY", "RUN", "ABOUT", "ASKED", "DIGEST"],
        [
            (
                row.id,
                row.kind,
                row.state,
                row.decided_by or "-",
                row.run_id,
                about(row),
                moment(row.asked_at),
                row.digest,
            )
            for row in rows
        ],
        empty="nothing is asked of anybody",
    )


@click.command()
@click.argument("id")
@by_option
@digest_option
@click.option("--input", "changed", help="Other arguments for the call, as JSON.")
@url_option
@json_option
def approve(*, id: str, by: str, digest: str | None, changed: str | None, url: str | None, as_json: bool) -> None:
    """Let a call run, or a run go on; ID is the inquiry's, the call's or the run's."""
    given = None if changed is None else _object(changed)
    _say(ask(url, lambda app: app.approve(id, by=by, digest=digest, input=given)), as_json)


@click.command()
@click.argument("id")
@by_option
@digest_option
@click.option("--message", default="", help="What the model is told.")
@url_option
@json_option
def deny(*, id: str, by: str, digest: str | None, message: str, url: str | None, as_json: bool) -> None:
    """Keep a call from running, or end a run that asked to go on."""
    _say(ask(url, lambda app: app.deny(id, by=by, digest=digest, message=message)), as_json)


@click.command()
@click.argument("id")
@click.argument("text")
@by_option
@digest_option
@url_option
@json_option
def answer(*, id: str, text: str, by: str, digest: str | None, url: str | None, as_json: bool) -> None:
    """Answer a question, or give the result of a call in its place."""
    _say(ask(url, lambda app: app.answer(id, text, by=by, digest=digest)), as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"--input is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise UsageError("--input is a JSON object, with the arguments by name.")
    return value


def about(row: Inquiry) -> str:
    if row.call is not None and row.kind != "question":
        given = encoding.encode(row.call.input, what="arguments", cap=1 << 26)
        return f"{row.name} {given if len(given) < 80 else given[:77] + '...'}"
    return str(row.data.get("question") or row.data.get("reason") or "")


def _say(row: Inquiry, as_json: bool) -> None:
    if as_json:
        print_json(inquiry_dict(row))
    else:
        click.echo(plain(f"inquiry {row.id} is {row.state}"))


def inquiry_dict(row: Inquiry) -> dict[str, Any]:
    return readable(asdict(row), encoding.decode, texts=())
