"""The `holdfast` command: one module per noun. It calls the app and the kernel, and prints; it decides nothing.

Exit codes: 0 done, 1 the answer is no (`migrate --check`, or `doctor` found a problem), 2 called wrongly, 3 the store
refused, 4 the store or the world is unavailable, 70 a fault of Holdfast itself, 130 interrupted. An error is a line on
stderr; with `--json` it is also `{"error": …, "message": …}` on stdout, so that who reads JSON always has some.
"""

from __future__ import annotations

import importlib
import json
import sys

import click
from click.shell_completion import CompletionItem

from holdfast.errors import HoldfastError, StoreRefused, Unavailable, UsageError
from holdfast.version import VERSION

COMMANDS = {
    "init": "Write a small program with a job and a schedule.",
    "dev": "Run a worker that starts again when the code changes.",
    "worker": "Run jobs until stopped.",
    "migrate": "Bring the database's tables to this version, or to another.",
    "jobs": "List, show, explain, retry, cancel and follow jobs.",
    "agents": "List and show agents.",
    "sessions": "List, show, fork and compact sessions.",
    "runs": "List, show, follow, decide about, fork and cancel runs.",
    "batches": "List and show batches.",
    "usage": "Say what models have used and cost.",
    "budgets": "List, set and remove budgets.",
    "chat": "Talk with an agent in the terminal.",
    "queues": "List, show, pause and resume queues.",
    "workers": "List, show and drain workers.",
    "schedules": "List, pause, resume, run and remove schedules.",
    "top": "Watch queues, workers, rates and failures live.",
    "doctor": "Say what is wrong with the database or the work in it.",
    "prune": "Remove finished jobs that are old enough.",
    "settings": "List every setting, its value and what it means.",
    "epoch": "Raise the cluster epoch after restoring a backup.",
    "completion": "Print the script that completes commands in a shell.",
    "lanes": "Show lanes to model providers that are closed, and open them.",
    "provider": "Stand in for the model provider, as strict as it is.",
    "bench": "Measure how fast jobs go through your own database.",
    "demo": "Watch agents survive the death of their workers.",
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

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [CompletionItem(name, help=COMMANDS[name]) for name in COMMANDS if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="holdfast")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def group(debug: bool) -> None:
    """Durable agents and jobs on the database you already have."""


def main() -> None:
    debug = "--debug" in sys.argv[1:2]
    try:
        code = group.main(prog_name="holdfast", standalone_mode=False)
    except click.exceptions.Exit as left:
        code = left.exit_code
    except click.ClickException as problem:
        problem.show()
        _tell(problem, problem.format_message())
        code = problem.exit_code
    except click.Abort:
        code = 130
    except HoldfastError as problem:
        if debug:
            raise
        click.echo(f"holdfast: {problem}", err=True)
        _tell(problem, str(problem))
        code = exit_code(problem)
    except Exception as problem:
        if debug:
            raise
        click.echo(f"holdfast: {type(problem).__name__}: {problem}. `holdfast --debug …` shows where.", err=True)
        _tell(problem, str(problem))
        code = 70
    sys.exit(code if isinstance(code, int) else 0)


def _tell(problem: Exception, message: str) -> None:
    if "--json" in sys.argv[1:]:
        click.echo(json.dumps({"error": type(problem).__name__, "message": message}, ensure_ascii=False))


def exit_code(problem: HoldfastError) -> int:
    from holdfast.models.failures import ModelFailure

    match problem:
        case UsageError():
            return 2
        case StoreRefused():
            return 3
        case Unavailable():
            return 4
        case ModelFailure():
            return 4 if problem.transient else 3
        case _:
            return 70
