"""`holdfast runs inquiries/approve/deny/answer`: what people are asked, and what they say."""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.agents.values import Inquiry
from holdfast.app import Holdfast
from holdfast.cli.options import after_option, ask, json_option, limit_option, print_json, url_option
from holdfast.cli.short_ids import whole
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.text import escaped
from holdfast.values import Page

_INQUIRIES = (
    Column("ID", "id", of="inquiry"),
    Column("KIND", rank=3, least=8),
    Column("STATE", "state", rank=1),
    Column("BY", rank=5),
    Column("RUN", "id", of="run", rank=4),
    Column("ABOUT", least=20),
    Column("ASKED", "time", rank=2),
    Column("DIGEST", rank=6),
)
_ALL = Listing("inquiries", "No run has asked a person.", _INQUIRIES)
_OPEN = Listing(
    "open inquiries", "Nobody needs to decide anything; --all lists what was decided.", _INQUIRIES, "no inquiry is open"
)
by_option = click.option("--by", default="", help="Who decides.")
digest_option = click.option("--digest", help="Refuse if the arguments are not the ones that were shown.")


@click.command()
@click.option("--run", help="Only of this run.")
@click.option("--tenant", help="Only of this tenant.")
@click.option("--all", "everything", is_flag=True, help="Include decided ones.")
@limit_option
@after_option
@url_option
@wide_option
@json_option
def inquiries(everything: bool, url: str | None, as_json: bool, wide: bool, **filters: Any) -> None:
    """List inquiries: what runs ask people, oldest first."""
    state = None if everything else "open"

    async def asked(app: Holdfast) -> Page[Inquiry]:
        run = filters["run"] and await whole(app, filters["run"], "run")
        return await app.inquiries.list(state=state, **{**filters, "run": run})

    print_list(
        url,
        asked,
        _ALL if everything else _OPEN,
        lambda row: (
            *(row.id, row.kind, row.state, row.decided_by, row.run_id),
            *(about(row), row.asked_at, row.digest),
        ),
        filtered=any(filters[name] for name in ("run", "tenant", "after")),
        as_json=as_json,
        wide=wide,
    )


@click.command()
@click.argument("id")
@by_option
@digest_option
@click.option("--input", "changed", help="Other arguments for the call, as JSON.")
@url_option
@json_option
def approve(*, id: str, by: str, digest: str | None, changed: str | None, url: str | None, as_json: bool) -> None:
    """Approve a call, or let a run continue. ID is the id of the inquiry, the call or the run."""
    given = None if changed is None else _object(changed)

    async def ruled(app: Holdfast) -> Inquiry:
        return await app.approve(await _named(app, id), by=by, digest=digest, input=given)

    _say(ask(url, ruled), as_json)


@click.command()
@click.argument("id")
@by_option
@digest_option
@click.option("--message", default="", help="The message for the model.")
@url_option
@json_option
def deny(*, id: str, by: str, digest: str | None, message: str, url: str | None, as_json: bool) -> None:
    """Deny a call, or end a run that asked to continue."""

    async def ruled(app: Holdfast) -> Inquiry:
        return await app.deny(await _named(app, id), by=by, digest=digest, message=message)

    _say(ask(url, ruled), as_json)


@click.command()
@click.argument("id")
@click.argument("text")
@by_option
@digest_option
@url_option
@json_option
def answer(*, id: str, text: str, by: str, digest: str | None, url: str | None, as_json: bool) -> None:
    """Answer a question, or provide the result of a call instead of running it."""

    async def ruled(app: Holdfast) -> Inquiry:
        return await app.answer(await _named(app, id), text, by=by, digest=digest)

    _say(ask(url, ruled), as_json)


async def _named(app: Holdfast, id: str) -> str:
    """The id of an inquiry, a call or a run, perhaps from a short one."""
    return await whole(app, id, "inquiry", "call", "run")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"--input is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise UsageError("--input must be a JSON object with the arguments by name.")
    return value


def about(row: Inquiry) -> str:
    if row.call is not None and row.kind != "question":
        given = codec.encode(row.call.input, what="arguments", cap=1 << 26)
        changed = row.data.get("changed")
        by = "" if not changed else f" (changed by {changed.get('by') or 'a person'})"
        return f"{row.name} {given if len(given) < 80 else given[:77] + '...'}{by}"
    return str(row.data.get("question") or row.data.get("reason") or "")


def _say(row: Inquiry, as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        click.echo(escaped(f"inquiry {row.id} is {row.state}"))
