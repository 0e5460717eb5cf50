"""`holdfast sessions`: conversations, and what was said in one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from holdfast.agents.compaction.compacting import CompactionStats
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.options import check_model
from holdfast.agents.reading import MessageView
from holdfast.agents.records import SessionRow
from holdfast.app import Holdfast
from holdfast.cli import forks
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
from holdfast.errors import UsageError
from holdfast.kernel import encoding


@click.group()
def command() -> None:
    """List, show, fork and compact sessions."""


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
@tenant_option
@url_option
@json_option
def show(id: str, limit: int, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Show what was said in a session, by its id or key."""

    async def found(app: Holdfast) -> tuple[SessionRow, list[MessageView]]:
        session = seen_by(app, tenant).sessions[id]
        return await session.refresh(), await session.messages(limit=limit)

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


@command.command()
@click.argument("id")
@click.option("--strategy", type=click.Choice(["hybrid", "summarize"]), help="How; default: as its last agent says.")
@click.option("--target", type=click.IntRange(1), metavar="TOKENS", help="The size to reach.")
@click.option("--summarizer", metavar="MODEL", help="Who summarises; default: the model of the last run.")
@click.option("--preserve-last", type=click.IntRange(0), metavar="MESSAGES", help="Leave the last so many alone.")
@click.option("--protected-tokens", type=click.IntRange(0), metavar="TOKENS", help="And the last so many tokens.")
@click.option("--if-needed", is_flag=True, help="Only when the session has reached its trigger.")
@tenant_option
@url_option
@json_option
def compact(
    *, id: str, target: int | None, if_needed: bool, tenant: str | None, url: str | None, as_json: bool, **chosen: Any
) -> None:
    """Make what a session sends smaller; the originals are kept. By its id or key."""
    given = {name: value for name, value in {**chosen, "target_tokens": target}.items() if value is not None}
    if chosen["summarizer"] is not None:
        check_summarizer(chosen["summarizer"])

    async def done(app: Holdfast) -> CompactionRow | None:
        session = seen_by(app, tenant).sessions[id]
        config = Compaction(**{**(await session.compaction_config()).plain(), **given}) if given else None
        return await (session.compact_if_needed(config) if if_needed else session.compact(config))

    row = ask(url, done)
    if as_json:
        print_json(None if row is None else _compaction(row))
    elif row is None:
        click.echo("no need")
    else:
        what = f"{row.removed} messages summarised" if row.removed else f"{row.pruned} outputs of tools removed"
        click.echo(f"{what}: {row.tokens_before:,} to {row.tokens_after or 0:,} tokens")


@command.command()
@click.argument("id")
@tenant_option
@url_option
@json_option
def stats(id: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Show how full a session is, and what was compacted in it. By its id or key."""

    async def looked(app: Holdfast) -> tuple[CompactionStats, list[CompactionRow]]:
        session = seen_by(app, tenant).sessions[id]
        return await session.compaction_stats(), await session.compactions()

    found, rows = ask(url, looked)
    if as_json:
        print_json({**asdict(found), "compactions": [_compaction(row) for row in rows]})
        return
    print_pairs({name.replace("_", " "): value for name, value in asdict(found).items()})
    for row in rows:
        after = "-" if row.tokens_after is None else f"{row.tokens_after:,}"
        click.echo(f"{moment(row.started_at)} {row.state} {row.strategy}: {row.tokens_before:,} to {after} tokens")


@command.command()
@click.argument("id")
@tenant_option
@url_option
@json_option
def restore(id: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Undo the latest compaction of a session that stands. By its id or key."""

    async def done(app: Holdfast) -> CompactionRow:
        return await seen_by(app, tenant).sessions[id].restore()

    row = ask(url, done)
    if as_json:
        print_json(_compaction(row))
    else:
        click.echo(f"the compaction of {moment(row.started_at)} is undone")


command.add_command(forks.fork_session)


def check_summarizer(model: str) -> None:
    """`UsageError` when nothing is known of the model that is to summarise."""
    try:
        check_model(model, {})
    except UsageError as problem:
        raise UsageError(f"--summarizer cannot be {model}: {problem}") from None


def _compaction(row: CompactionRow) -> dict[str, object]:
    return readable(row._asdict(), encoding.decode, texts=("config", "usage"))


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
