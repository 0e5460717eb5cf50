"""`holdfast agents`: what is stored of agents and their versions."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.agents.records import AgentRow, VersionRow
from holdfast.app import Holdfast
from holdfast.cli.options import (
    ask,
    json_option,
    moment,
    plain,
    print_json,
    print_pairs,
    print_table,
    readable,
    seen_by,
    tenant_option,
    url_option,
)
from holdfast.kernel import encoding


@click.group()
def command() -> None:
    """List and show agents."""


@command.command()
@click.option("--tenant", help="Only agents of this tenant.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@url_option
@json_option
def ls(tenant: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """List agents by name."""
    rows = ask(url, lambda app: app.agents.list(tenant=tenant, limit=limit))
    if as_json:
        print_json([readable(row._asdict(), encoding.decode, texts=("metadata",)) for row in rows])
        return
    print_table(
        ["NAME", "VERSION", "TENANT", "METADATA", "UPDATED", "ID"],
        [(row.name, row.version, row.tenant or "-", row.metadata, moment(row.updated_at), row.id) for row in rows],
        empty="no agents",
    )


@command.command()
@click.argument("name")
@tenant_option
@url_option
@json_option
def show(name: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Show one agent, by name or id: its present version, and that there were others."""

    async def found(app: Holdfast) -> tuple[AgentRow, Sequence[VersionRow]]:
        agents = seen_by(app, tenant).agents
        row = await agents.get(name)
        return row, await agents.versions(row.id)

    row, versions = ask(url, found)
    if as_json:
        shown = readable(row._asdict(), encoding.decode, texts=("metadata",))
        shown["versions"] = [readable(each._asdict(), encoding.decode, texts=("definition",)) for each in versions]
        print_json(shown)
        return
    spec = encoding.decode(next(each.definition for each in versions if each.version == row.version))
    print_pairs(
        {
            "name": row.name,
            "id": row.id,
            "version": f"{row.version} of {len(versions)}",
            "model": spec["model"],
            "tools": ", ".join(tool["name"] for tool in spec["tools"]),
            "agents": ", ".join(each["name"] for each in spec["agents"]),
            "max_tokens": spec["max_tokens"],
            "description": plain(row.description),
            "updated_at": moment(row.updated_at),
        }
    )
    if spec["instructions"]:
        click.echo("\n" + "\n".join(plain(line) for line in spec["instructions"].splitlines()))
