"""The `holdfast` command: one module per noun. It calls the app and the kernel, and prints; it decides nothing.

Exit codes: 0 done, 1 the answer is no (`migrate --check`, or `doctor` found a problem), 2 called wrongly, 3 the store
refused, 4 the store or the world is unavailable, 70 a fault of Holdfast itself, 130 interrupted. An error is a line on
stderr, with the traceback of the user's code below it if that raised; with `--json` it is also `{"error": …,
"message": …}` on stdout, with the other members of a problem and perhaps `"traceback"`, so that who reads JSON always
has some.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from holdfast.errors import VERSION, HoldfastError, StoreRefused, Unavailable, UsageError, namesake
from holdfast.settings import warn_of_unknown_variables
from holdfast.validation import did_you_mean

COMMANDS = {
    "init": "Write a small program with a job, a schedule and an agent.",
    "dev": "Run a worker that starts again when the code changes.",
    "worker": "Run jobs until stopped.",
    "pool": "Run as many workers as there is work for.",
    "migrate": "Migrate the database's tables to this version, or to another.",
    "enqueue": "Enqueue a job of your program.",
    "run": "Give a text to an agent, and wait for its answer if you like.",
    "jobs": "List, show, explain, retry, cancel and follow jobs.",
    "machine": "Check, run, resume, list, show and draw machines.",
    "triggers": "Run the machines that triggers start, and let cron do so.",
    "agents": "List and show agents.",
    "sessions": "List, show, fork, compact and prune sessions.",
    "runs": "List, show, follow, explain, retry, fork and cancel runs.",
    "batches": "List and show batches.",
    "usage": "Show what models have used and cost.",
    "budgets": "List, set and delete budgets.",
    "tenants": "Erase tenants, and set how long their data is kept.",
    "chat": "Talk with an agent in the terminal.",
    "queues": "List, show, pause and resume queues.",
    "workers": "List, show, drain and forget workers.",
    "pools": "List pools of workers.",
    "scale": "Tell how many workers a queue needs.",
    "deploy": "Print manifests that run and scale workers elsewhere.",
    "schedules": "List, pause, resume, run and delete schedules.",
    "resp": "Serve Redis clients, and manage their keys.",
    "agw": "Run plans of Unix tools for a gateway.",
    "plan": "Submit, show, list and remove plans of Unix tools.",
    "action": "Apply a plan of Unix tools to inputs.",
    "top": "Watch queues, agents, workers, rates, money and failures live.",
    "doctor": "Check the database and the work in it for problems.",
    "prune": "Remove finished jobs that are old enough.",
    "settings": "List every setting, its value and what it means.",
    "serve": "Serve the pages and the JSON API.",
    "tokens": "Create, list, rotate and revoke tokens for the web.",
    "audit": "List what was changed from outside, and verify the record.",
    "epoch": "Raise the cluster epoch after restoring a backup.",
    "completion": "Print the script that completes commands in a shell.",
    "lanes": "Show lanes to model providers that are closed, and open them.",
    "provider": "Simulate the model provider, with the same checks.",
    "sql": "Print a statement as each database gets it, and its plan.",
    "bench": "Measure how fast jobs go through your own database.",
    "demo": "Watch agents survive the death of their workers.",
}

_LOGGING = frozenset(
    {"worker", "pool", "dev"}
)  # a worker warns when its log is set up; `dev` leaves that to its worker


class LazyGroup(click.Group):
    """Imports a command when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"holdfast.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [CompletionItem(name, help=COMMANDS[name]) for name in COMMANDS if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="holdfast")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def group(ctx: click.Context, debug: bool) -> None:
    """Durable agents and jobs on the database you already have."""
    from holdfast.cli.logs import allows_colors

    ctx.color = None if allows_colors() else False  # None: click asks each stream
    if ctx.invoked_subcommand not in _LOGGING:
        warn_of_unknown_variables()


def main() -> None:
    debug = "--debug" in sys.argv[1:2]
    try:
        _refuse_namesake()
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
        from holdfast.text import shown_lines, shown_text

        click.echo(f"holdfast: {shown_text(problem)}", err=True)
        notes = notes_of(problem)
        for note in notes:
            click.echo(shown_lines(note), err=True)
        _tell(problem, str(problem), notes)
        code = exit_code(problem)
    except Exception as problem:
        if debug:
            raise
        from holdfast.text import message_of, shown_text

        click.echo(f"holdfast: {shown_text(message_of(problem))}. Run `holdfast --debug …` to see where.", err=True)
        _tell(problem, str(problem))
        code = 70
    sys.exit(code if isinstance(code, int) else 0)


def _refuse_namesake() -> None:
    """The package above this one is theirs if it was installed last: no program can import ours then."""
    if "Holdfast" not in getattr(sys.modules["holdfast"], "__all__", ()) and (said := namesake()):
        raise UsageError(said)


def _tell(problem: Exception, message: str, notes: Sequence[str] = ()) -> None:
    if "--leash" in sys.argv[1:]:
        from holdfast.pools.leash import send_last_words

        send_last_words(message)
    if "--json" in sys.argv[1:]:
        from holdfast.text import shown_text

        where = {"traceback": "\n".join(map(shown_text, notes))} if notes else {}
        said = {**_members(problem), "message": shown_text(message), **where}
        click.echo(json.dumps(said, ensure_ascii=False))


def _members(problem: Exception) -> dict[str, str]:
    if not isinstance(problem, HoldfastError):
        return {"error": type(problem).__name__}
    from holdfast.text import problem_members

    return problem_members(problem)


def notes_of(problem: BaseException | None) -> list[str]:
    """The notes of an error of ours, such as the traceback of a job, and of those that it says in other words."""
    notes: list[str] = []
    seen: set[int] = set()  # an error may be raised from itself
    while isinstance(problem, HoldfastError) and id(problem) not in seen:
        seen.add(id(problem))
        notes += getattr(problem, "__notes__", ())
        problem = problem.__cause__
    return notes


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
