"""`holdfast sessions`: conversations, and what was said in one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from holdfast import values
from holdfast.agents.api.options import check_model
from holdfast.agents.api.session import Session
from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.values import CompactionRecord, Message, SessionRecord
from holdfast.app import Holdfast
from holdfast.cli import forks
from holdfast.cli.options import (
    after_option,
    all_of,
    ask,
    json_option,
    limit_option,
    moment,
    print_json,
    print_pairs,
    reason_option,
    seen_by,
    tenant_option,
    text_of,
    url_option,
)
from holdfast.cli.short_ids import whole_session
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.errors import NotFound, UsageError
from holdfast.text import escaped, escaped_lines, plural

_SESSIONS = Listing(
    "sessions",
    "Every run of an agent has one: `holdfast run AGENT TEXT`, or `holdfast chat MODULE:APP AGENT`.",
    (
        Column("ID", "id", of="session"),
        Column("KEY"),
        Column("TENANT", rank=2, sparse=True),
        Column("RUNS", "number"),
        Column("METADATA", rank=3),
        Column("UPDATED", "time", rank=1),
    ),
)


@click.group()
def command() -> None:
    """List, show, fork, compact and prune sessions, and take messages out of them."""


@command.command()
@click.option("--tenant", help="Only sessions of this tenant.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Only sessions with this in their metadata.")
@limit_option
@after_option
@url_option
@wide_option
@json_option
def ls(metadata: tuple[str, ...], url: str | None, as_json: bool, wide: bool, **filters: Any) -> None:
    """List sessions, newest first."""
    wanted = dict(_pair(each) for each in metadata)
    print_list(
        url,
        lambda app: app.sessions.list(metadata=wanted, **filters),
        _SESSIONS,
        lambda row: (row.id, row.key, row.tenant, row.runs, text_of(row.metadata), row.updated_at),
        filtered=bool(wanted) or any(filters[name] for name in ("tenant", "after")),
        as_json=as_json,
        wide=wide,
    )


@command.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="At most this many.")
@tenant_option
@url_option
@json_option
def show(id: str, limit: int, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Show the messages of a session, by its id or key."""

    async def found(app: Holdfast) -> tuple[SessionRecord, list[Message]]:
        session = seen_by(app, tenant).sessions[await whole_session(app, id, tenant)]
        return await session.refresh(), await session.messages(limit=limit)

    row, messages = ask(url, found)
    if as_json:
        print_json({**values.as_json(row), "messages": list(messages)})
        return
    for message in messages:
        who = f"{message.role} (retired)" if message.retired else message.role
        for block in message.blocks:
            click.echo(f"{who}: {_said(block)}")


@command.command()
@click.argument("id")
@click.option("--strategy", type=click.Choice(["hybrid", "summarize"]), help="Default: as the last agent declares.")
@click.option("--target", type=click.IntRange(1), metavar="TOKENS", help="The size to reach, in tokens.")
@click.option("--summarizer", metavar="MODEL", help="The model that summarises; default: the model of the last run.")
@click.option("--preserve-last", type=click.IntRange(0), metavar="MESSAGES", help="Keep this many last messages.")
@click.option("--protected-tokens", type=click.IntRange(0), metavar="TOKENS", help="Keep this many last tokens.")
@click.option("--if-needed", is_flag=True, help="Only if the session has reached its trigger.")
@tenant_option
@reason_option
@url_option
@json_option
def compact(
    *, id: str, target: int | None, if_needed: bool, tenant: str | None, url: str | None, as_json: bool, **chosen: Any
) -> None:
    """Compact a session, by its id or key: send less to the model, and keep the originals."""
    given = {name: value for name, value in {**chosen, "target_tokens": target}.items() if value is not None}
    if chosen["summarizer"] is not None:
        check_summarizer(chosen["summarizer"])

    async def done(app: Holdfast) -> CompactionRecord | None:
        session = seen_by(app, tenant).sessions[await whole_session(app, id, tenant)]
        config = Compaction(**{**(await session.compaction_config()).plain(), **given}) if given else None
        return await (session.compact_if_needed(config) if if_needed else session.compact(config))

    row = ask(url, done)
    if as_json:
        print_json(row)
    elif row is None:
        click.echo("no need")
    else:
        what = (
            f"{plural(row.removed, 'message')} summarised"
            if row.removed
            else f"{plural(row.pruned, 'output')} of tools removed"
        )
        click.echo(f"{what}: {row.tokens_before:,} to {row.tokens_after or 0:,} tokens")


@command.command()
@click.argument("id")
@tenant_option
@url_option
@json_option
def stats(id: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Show how full a session is, and its compactions, by its id or key."""

    async def looked(app: Holdfast) -> tuple[CompactionStats, list[CompactionRecord]]:
        session = seen_by(app, tenant).sessions[await whole_session(app, id, tenant)]
        return await session.compaction_stats(), await all_of(session.compactions)

    found, rows = ask(url, looked)
    if as_json:
        print_json({**values.as_json(found), "compactions": rows})
        return
    print_pairs({name.replace("_", " "): value for name, value in asdict(found).items()})
    for row in rows:
        after = "-" if row.tokens_after is None else f"{row.tokens_after:,}"
        click.echo(f"{moment(row.started_at)} {row.state} {row.strategy}: {row.tokens_before:,} to {after} tokens")


@command.command()
@click.argument("id")
@tenant_option
@reason_option
@url_option
@json_option
def restore(id: str, tenant: str | None, url: str | None, as_json: bool) -> None:
    """Undo the latest active compaction of a session, by its id or key."""

    async def done(app: Holdfast) -> CompactionRecord:
        return await seen_by(app, tenant).sessions[await whole_session(app, id, tenant)].restore()

    row = ask(url, done)
    if as_json:
        print_json(row)
    else:
        click.echo(f"the compaction of {moment(row.started_at)} is undone")


@command.command()
@click.argument("id")
@click.argument("message")
@tenant_option
@url_option
def retire(id: str, message: str, tenant: str | None, url: str | None) -> None:
    """Retire a message: models no longer see it, nor the other messages of its run.

    ID is the session's id or key, MESSAGE the message's id or its number: `sessions show --json` shows both. Holdfast
    keeps the messages and shows them as retired. It refuses while a run of the session has not ended.
    """

    async def done(app: Holdfast) -> None:
        session = seen_by(app, tenant).sessions[await whole_session(app, id, tenant)]
        await session.retire(await _message_of(session, message) if message.isdecimal() else message)

    ask(url, done)
    click.echo(f"message {escaped(message)} is no longer sent to models")


@command.command()
@click.option("--older-than", required=True, metavar="AGE", help="Only sessions unused for this long, such as 90d.")
@click.option("--tenant", help="Only sessions of this tenant.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@json_option
def prune(older_than: str, tenant: str | None, yes: bool, url: str | None, as_json: bool) -> None:
    """Remove old sessions with their messages and runs; their costs stay counted."""
    if not yes:
        click.confirm(f"Remove every session that was not used for {older_than}?", abort=True)

    def tell(removed: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{plural(removed, 'session')} removed", nl=False, err=True)

    async def done(app: Holdfast) -> int:
        return await seen_by(app, tenant).sessions.prune(older_than=older_than, progress=tell)

    removed = ask(url, done)
    if sys.stderr.isatty():
        click.echo(err=True)
    print_json({"removed": removed}) if as_json else click.echo(f"{plural(removed, 'session')} removed")


command.add_command(forks.fork_session)


def check_summarizer(model: str) -> None:
    """`UsageError` when nothing is known of the model that is to summarise."""
    try:
        check_model(model, {})
    except UsageError as problem:
        raise UsageError(f"--summarizer cannot be {model}: {problem}") from None


async def _message_of(session: Session, number: str) -> Message:
    found = await session.messages(after=max(0, int(number) - 1), limit=1, archived=True)
    if not found or found[0].ordinal != int(number):
        raise NotFound(f"session {session.id} has no message {number}.")
    return found[0]


def _said(block: dict[str, object]) -> str:
    match block.get("type"):
        case "text":
            return escaped_lines(str(block.get("text", "")))
        case "tool_use":
            return escaped(f"[calls {block.get('name')} {block.get('input')}]")
        case "tool_result":
            failed = " failed" if block.get("is_error") else ""
            return escaped(f"[result{failed}: {str(block.get('content', ''))[:500]}]")
        case other:
            return f"[{other}]"


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--metadata takes KEY=VALUE; got {text!r}.")
    return key, value
