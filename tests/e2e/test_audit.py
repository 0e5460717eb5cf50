"""What commands and programs change is in the audit, as what the web changes is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast import Holdfast
from holdfast.cli import group
from holdfast.cli.options import CHANGING, caller
from holdfast.errors import UsageError
from tests.support.commands import holdfast

# They read, they make work as every program does, or they only start something.
OTHERS = {
    *(
        "action show",
        "agents ls",
        "agents show",
        "agw",
        "audit ls",
        "audit verify",
        "batches ls",
        "batches show",
        "bench",
    ),
    *("budgets ls", "chat", "completion", "demo", "deploy kubernetes", "dev", "doctor", "enqueue", "init", "jobs ls"),
    *("jobs show", "jobs tail", "jobs why", "lanes ls", "machine check", "machine draw", "machine ls", "machine run"),
    *("machine show", "migrate", "plan ls", "plan show", "pool", "pools ls", "provider", "queues ls", "queues show"),
    *(
        "resp keys ls",
        "run",
        "runs cassette",
        "runs compare",
        "runs export",
        "runs inquiries",
        "runs ls",
        "runs replay",
    ),
    *("runs show", "runs tail", "runs why", "scale", "schedules ls", "serve", "sessions ls", "sessions show"),
    *(
        "sessions stats",
        "settings",
        "sql",
        "tokens ls",
        "top",
        "triggers install",
        "triggers remove",
        "triggers tick",
        "usage",
    ),
    *("worker", "workers ls", "workers show"),
}


def commands(command: click.Command, path: str = "") -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, f"{path} {name}".strip())


def test_every_command_is_known_to_change_something_or_not() -> None:
    assert set(commands(group)) == CHANGING | OTHERS
    assert not CHANGING & OTHERS


def rows(url: str) -> list[tuple[str, str, str, str]]:
    listed = json.loads(holdfast("audit", "ls", "--json", "--url", url).out)
    return [(row["actor"], row["phase"], row["action"], row["subject"]) for row in reversed(listed)]


def test_a_command_that_changes_something_is_written(tmp_path: Path) -> None:
    url, me = f"sqlite:///{tmp_path / 'store.db'}", caller().name
    asyncio.run(Holdfast(url).migrate())
    assert holdfast("queues", "pause", "mail", "--create", "--reason", "too hot", "--url", url).code == 0
    assert holdfast("queues", "ls", "--url", url).code == 0
    assert holdfast("workers", "drain", "nobody", "--url", url).code != 0
    assert rows(url) == [
        (me, "intent", "queues pause", "mail"),
        (me, "outcome", "queues pause", "mail"),
        (me, "intent", "workers drain", "nobody"),
        (me, "outcome", "workers drain", "nobody"),
    ]
    (failed, *_, intent) = json.loads(holdfast("audit", "ls", "--json", "--url", url).out)
    assert failed["detail"] == {"error": "NotFound"}
    assert intent["detail"]["reason"] == "too hot"
    assert holdfast("audit", "verify", "--url", url).code == 0


def test_a_program_says_who_changes_something(tmp_path: Path) -> None:
    async def change() -> list[tuple[str, str, object]]:
        async with Holdfast(f"sqlite:///{tmp_path / 'store.db'}", embedded=False) as hf:
            async with hf.access.audit.recording("ann", "pause", "mail"):
                await hf.queues.pause("mail", reason="x")
            with pytest.raises(UsageError):
                async with hf.access.audit.recording("ann", "retry", "job 1"):
                    await hf.jobs.retry("1")
            return [(row.actor, row.phase, row.detail) for row in reversed(await hf.access.audit.list())]

    assert asyncio.run(change()) == [
        ("ann", "intent", {}),
        ("ann", "outcome", {}),
        ("ann", "intent", {}),
        ("ann", "outcome", {"error": "UsageError"}),
    ]
