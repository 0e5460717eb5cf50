"""The `holdfast` command: one module per noun. It calls the app and the kernel, and prints; it decides nothing.

Exit codes: 0 done, 1 the answer is no (`--check`), 2 called wrongly, 3 the store refused, 4 the store or the world
is unavailable, 70 a fault of Holdfast itself.
"""

from __future__ import annotations

import importlib
import sys

import click

from holdfast.errors import HoldfastError, StoreRefused, Unavailable, UsageError
from holdfast.version import VERSION

COMMANDS = {
    "worker": "Run jobs until stopped.",
    "migrate": "Bring the database's tables to this version, or to another.",
    "jobs": "List and show jobs.",
    "workers": "List workers.",
    "settings": "List every setting, its value and what it means.",
    "epoch": "Raise the cluster epoch after restoring a backup.",
    "demo": "Watch jobs survive the death of their worker.",
}


class LazyGroup(click.Group):
    """Imports a command when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"holdfast.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="holdfast")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def group(debug: bool) -> None:
    """Durable jobs on the database you already have."""


def main() -> None:
    debug = "--debug" in sys.argv[1:2]
    try:
        code = group.main(standalone_mode=False)
    except click.exceptions.Exit as left:
        code = left.exit_code
    except click.ClickException as problem:
        problem.show()
        code = problem.exit_code
    except click.Abort:
        code = 130
    except HoldfastError as problem:
        if debug:
            raise
        click.echo(f"holdfast: {problem}", err=True)
        code = exit_code(problem)
    except Exception as problem:
        if debug:
            raise
        click.echo(f"holdfast: {type(problem).__name__}: {problem}. `holdfast --debug …` shows where.", err=True)
        code = 70
    sys.exit(code if isinstance(code, int) else 0)


def exit_code(problem: HoldfastError) -> int:
    match problem:
        case UsageError():
            return 2
        case StoreRefused():
            return 3
        case Unavailable():
            return 4
        case _:
            return 70
