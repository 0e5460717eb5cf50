"""`holdfast agents`: what is stored of agents and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from holdfast import values
from holdfast.agents.values import AgentRecord, VersionRecord
from holdfast.app import Holdfast
from holdfast.cli.options import (
    after_option,
    all_of,
    ask,
    json_option,
    limit_option,
    moment,
    print_json,
    print_pairs,
    seen_by,
    tenant_option,
    text_of,
    url_option,
)
from holdfast.cli.short_ids import whole_agent
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.text import escaped_lines

_AGENTS = Listing(
    "agents",
    "A worker whose program declares an agent stores it when it starts: `holdfast worker MODULE:APP`.",
    (
        Column("NAME", "name"),
        Column("VERSION", "number"),
        Column("TENANT", rank=2, sparse=True),
        Column("METADATA", rank=3),
        Column("UPDATED", "time", rank=1),
        Column("ID", "id", of="agent"),
    ),
)


@click.group()
def command() -> None:
    """List and show agents."""


@command.command()
@click.option("--tenant", help="Only agents of this tenant.")
@limit_option
@after_option
@url_option
@wide_option
@json_option
def ls(url: str | None, as_json: bool, wide: bool, **filters: Any) -> None:
    """List agents by name."""
    print_list(
        url,
        lambda app: app.agents.list(**filters),
        _AGENTS,
        lambda row: (row.name, row.version, row.tenant, text_of(row.metadata), row.updated_at, row.id),
        filtered=any(filters[name] for name in ("tenant", "after")),
        as_json=as_json,
        wide=wide,
    )


@command.command()
@click.argument("name")
@tenant_option
@url_option
@json_option
def show(name: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Show one agent, by name or id: its current version, and how many versions there are."""

    async def found(app: Holdfast) -> tuple[AgentRecord, Sequence[VersionRecord]]:
        agents = seen_by(app, tenant).agents
        row = await agents.get(await whole_agent(app, name, tenant))
        return row, await all_of(partial(agents.versions, row.id))

    row, versions = ask(url, found)
    if as_json:
        print_json({**values.as_json(row), "versions": versions})
        return
    spec = next(each.definition for each in versions if each.version == row.version)
    print_pairs(
        {
            "name": row.name,
            "id": row.id,
            "version": f"{row.version} of {len(versions)}",
            "model": spec["model"],
            "tools": ", ".join(tool["name"] for tool in spec["tools"]),
            "agents": ", ".join(each["name"] for each in spec["agents"]),
            "max_tokens": spec["max_tokens"],
            "description": row.description,
            "updated_at": moment(row.updated_at),
        }
    )
    if spec["instructions"]:
        click.echo("\n" + escaped_lines(spec["instructions"]))
