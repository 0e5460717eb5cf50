"""Every command says what it is for."""

from __future__ import annotations

import pytest

from holdfast.cli import COMMANDS
from holdfast.errors import VERSION
from tests.support.commands import cold_holdfast, holdfast, python

SUBCOMMANDS = {
    "jobs": ("ls", "show", "why", "retry", "cancel", "tail"),
    "queues": ("ls", "show", "pause", "resume"),
    "workers": ("ls", "show", "drain"),
    "agents": ("ls", "show"),
    "sessions": ("ls", "show"),
    "runs": ("ls", "show", "tail", "why", "retry", "cancel"),
    "lanes": ("ls", "open"),
    "schedules": ("ls", "pause", "resume", "run", "delete"),
    "epoch": ("bump",),
}


def test_the_command_lists_its_commands() -> None:
    said = cold_holdfast("--help")
    assert said.code == 0
    for name, purpose in COMMANDS.items():
        assert name in said.out
        assert purpose in said.out
    assert holdfast("-h").out == said.out


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str) -> None:
    said = holdfast(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: holdfast {name}" if "Usage: python" not in said.out else "Usage: python")
    for subcommand in SUBCOMMANDS.get(name, ()):
        assert subcommand in said.out
        explained = holdfast(name, subcommand, "-h").out
        assert "--url" in explained
        assert "--json" in explained


def test_the_version_is_the_packages() -> None:
    assert cold_holdfast("--version").lines == [f"holdfast, version {VERSION}"]


@pytest.mark.parametrize("words", [("paint",), ("jobs", "ls", "--state", "asleep"), ("worker",)])
def test_a_wrong_call_shows_how_to_call(words: tuple[str, ...]) -> None:
    said = holdfast(*words)
    assert said.code == 2
    assert "Usage:" in said.err
    assert "Traceback" not in said.err


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    said = holdfast("workr")
    assert said.code == 2
    assert said.err.splitlines()[-1] == "Error: No such command 'workr'. Did you mean 'worker'?"


def test_help_loads_no_database_driver() -> None:
    program = (
        "import sys; sys.argv = ['holdfast', '--help']\n"
        "from holdfast.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'apsw', 'asyncpg', 'pydantic'} & set(sys.modules)))"
    )
    assert python("-c", program).lines[-1] == "[]"
