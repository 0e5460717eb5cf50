"""Lists on the command line: with `--json` each is an array, and stderr says where a part of a list continues."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import group

PAGED = ["agents ls", "audit ls", "batches ls", "jobs ls", "runs inquiries", "runs ls", "sessions ls"]
WHOLE = [
    "budgets ls",
    "lanes ls",
    "machine ls",
    "plan ls",
    "pools ls",
    "queues ls",
    "schedules ls",
    "tokens ls",
    "workers ls",
]
FILLED = ["agents ls", "jobs ls", "runs ls", "sessions ls"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with three agents, and a run of each that nobody has played."""
    path = f"sqlite:///{tmp_path_factory.mktemp('lists') / 'store.db'}"

    async def fill() -> None:
        app = Holdfast(path, embedded=False)
        for name in ("a", "b", "c"):
            await app.agent(name, model="scripted:").enqueue("Hello")
        await app.close()

    asyncio.run(fill())
    return path


def listed(command: str, url: str, *more: str) -> tuple[Any, str]:
    said = CliRunner().invoke(group, [*command.split(), "--url", url, "--json", *more])
    assert said.exit_code == 0, said.output
    return json.loads(said.stdout), said.stderr


def test_every_list_is_here() -> None:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    lists = [f"{name} ls" for name, one in found.items() if isinstance(one, click.Group) and "ls" in one.commands]
    assert sorted([*lists, "runs inquiries"]) == sorted([*PAGED, *WHOLE])


@pytest.mark.parametrize("command", [*PAGED, *WHOLE])
def test_a_list_is_an_array(command: str, url: str) -> None:
    items, told = listed(command, url)
    assert (isinstance(items, list), told) == (True, "")
    assert len(items) == (3 if command in FILLED else len(items))


@pytest.mark.parametrize("command", FILLED)
def test_a_part_of_a_list_says_on_stderr_how_to_continue(command: str, url: str) -> None:
    whole, _ = listed(command, url)
    first, told = listed(command, url, "--limit", "2")
    assert told.startswith("there may be more: add --after ")
    rest, _ = listed(command, url, *told.split()[-2:])
    assert [*first, *rest] == whole


def test_what_is_shown_of_one_thing_has_arrays(url: str) -> None:
    (run, *_), _ = listed("runs ls", url)
    shown, _ = listed(f"runs show {run['id']}", url)
    assert (shown["turn_list"], shown["calls"]) == ([], [])
    shown, _ = listed("agents show a", url)
    assert [each["version"] for each in shown["versions"]] == [1]
    shown, _ = listed(f"sessions stats {run['session']}", url)
    assert shown["compactions"] == []
