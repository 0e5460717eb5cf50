"""`holdfast sessions`: conversations, and what was said in one."""

from __future__ import annotations

import click

from holdfast.agents.reading import MessageView
from holdfast.agents.records import SessionRow
from holdfast.app import Holdfast
from holdfast.cli.options import ask, json_option, moment, plain, print_json, print_table, readable, url_option
from holdfast.errors import UsageError
from holdfast.kernel import encoding


@click.group()
def command() -> None:
    """List and show sessions."""


@command.command()
@click.option("--tenant", help="Only sessions of this tenant.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Only sessions whose metadata have this.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@url_option
@json_option
def ls(tenant: str | None, metadata: tuple[str, ...], limit: int, url: str | None, as_json: bool) -> None:
    """List sessions, newest first."""
    wanted = dict(_pair(each) for each in metadata)
    rows = ask(url, lambda app: app.sessions.list(tenant=tenant, metadata=wanted, limit=limit))
    if as_json:
        print_json([_as_dict(row) for row in rows])
        return
    print_table(
        ["ID", "KEY", "TENANT", "RUNS", "METADATA", "UPDATED"],
        [(row.id, row.key or "-", row.tenant or "-", row.runs, row.metadata, moment(row.updated_at)) for row in rows],
        empty="no sessions",
    )


@command.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="At most this many.")
@url_option
@json_option
def show(id: str, limit: int, url: str | None, as_json: bool) -> None:
    """Show what was said in a session, by its id or key."""

    async def found(app: Holdfast) -> tuple[SessionRow, list[MessageView]]:
        row = await app.sessions.get(id)
        return row, list(await app.sessions[row.id].messages(limit=limit))

    row, messages = ask(url, found)
    if as_json:
        shown = [
            {"ordinal": m.ordinal, "role": m.role, "kind": m.kind, "run": m.run_id, "blocks": list(m.blocks)}
            for m in messages
        ]
        print_json({**_as_dict(row), "messages": shown})
        return
    for message in messages:
        for block in message.blocks:
            click.echo(f"{message.role}: {_said(block)}")


def _said(block: dict[str, object]) -> str:
    match block.get("type"):
        case "text":
            return "\n".join(plain(line) for line in str(block.get("text", "")).split("\n"))
        case "tool_use":
            return plain(f"[calls {block.get('name')} {block.get('input')}]")
        case "tool_result":
            failed = " failed" if block.get("is_error") else ""
            return plain(f"[result{failed}: {str(block.get('content', ''))[:500]}]")
        case other:
            return f"[{other}]"


def _as_dict(row: SessionRow) -> dict[str, object]:
    return readable(row._asdict(), encoding.decode, texts=("metadata",))


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--metadata takes KEY=VALUE, not {text!r}.")
    return key, value
