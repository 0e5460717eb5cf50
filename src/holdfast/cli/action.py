"""`holdfast action`: a plan applied to many inputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.cli.plan import read_json, tenant_option
from holdfast.cli.tables import Column, TableStyle, on_terminal, print_table, terminal_width
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.ids import new_id
from holdfast.resp import jobs, plans
from holdfast.resp.plan import read_plan
from holdfast.resp.plans import MOST_INPUTS, NewAction
from holdfast.resp.records import ENDED
from holdfast.text import plural

_LOOK = 0.2  # seconds between two looks at jobs that are waited for
_COLUMNS = (Column("INPUT"), Column("STATUS", "state"), Column("ATTEMPT", "number"), Column("OUTPUT"))
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def command() -> None:
    """Apply a plan of Unix tools to inputs, and show what came of it."""


@command.command("submit")
@click.argument("plan", type=_FILE)
@click.argument("inputs", type=_FILE)
@click.option("--id", "action_id", help="Id of the action; default: a new one.")
@click.option("--queue", default=plans.QUEUE, show_default=True, help="Queue of its jobs.")
@click.option("--wait", is_flag=True, help="Wait for the jobs, and print their results.")
@tenant_option
@url_option
@json_option
def submit(  # noqa: PLR0913, PLR0917  the options of the command
    plan: Path,
    inputs: Path,
    action_id: str | None,
    queue: str,
    wait: bool,
    tenant: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Store the plan in PLAN, and enqueue a job for each line of INPUTS, which is JSON."""
    template, values = read_plan(read_json(plan)), _lines(inputs)

    async def store(app: Holdfast) -> list[dict[str, Any]] | str:
        core = core_of(app)
        database = core.runtime().database
        await database.transact(plans.submit_plan, tenant, template)
        id = action_id or f"action-{new_id(core.ports)}"
        new = NewAction(id, template.id, values, [new_id(core.ports) for _ in values], queue)
        await database.transact(plans.submit_action, tenant, new)
        return await _results(app, tenant, [plans.public_id(job) for job in new.jobs]) if wait else id

    answer = ask(url, store, creates=True)
    if isinstance(answer, str):
        made = {"action_id": answer, "jobs": len(values)}
        print_json(made) if as_json else click.echo(f"action {answer} has {plural(len(values), 'job')}")
        return
    print_json(answer) if as_json else _print(answer)
    if any(each["status"] != "completed" for each in answer):
        raise click.exceptions.Exit(1)


@command.command("show")
@click.argument("action")
@tenant_option
@url_option
@json_option
def show(action: str, tenant: str, url: str | None, as_json: bool) -> None:
    """Show the jobs of ACTION and what they wrote."""

    async def question(app: Holdfast) -> list[dict[str, Any]]:
        database = core_of(app).runtime().database
        found = await database.transact(plans.find_action, tenant, action)
        if found is None:
            raise NotFound(f"there is no action {action!r}.")
        return [each for job in found[1] if (each := await database.transact(jobs.describe, job.id, tenant))]

    found = ask(url, question)
    print_json(found) if as_json else _print(found)


async def _results(app: Holdfast, tenant: str, ids: list[str]) -> list[dict[str, Any]]:
    """Wait until all have ended; on a terminal a bar shows how many have."""
    core = core_of(app)
    ended: dict[str, dict[str, Any]] = {}
    with click.progressbar(length=len(ids), label="jobs", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        while len(ended) < len(ids):
            for id in ids:
                described = None if id in ended else await core.runtime().database.transact(jobs.describe, id, tenant)
                if described is not None and described["status"] in ENDED:
                    ended[id] = described
                    bar.update(1)
            if len(ended) < len(ids):
                await core.ports.clock.sleep(_LOOK)
    return [ended[id] for id in ids]


def _print(found: list[dict[str, Any]]) -> None:
    look = TableStyle(terminal=True, width=terminal_width()) if on_terminal() else TableStyle()
    print_table(_COLUMNS, [_cells(each) for each in found], look, empty="no jobs")


def _cells(job: dict[str, Any]) -> tuple[object, ...]:
    results = job.get("task_results") or [{}]
    output = job.get("error") or results[-1].get("stdout", "")
    return job.get("input_index"), job["status"], job.get("attempt"), output.strip()


def _lines(file: Path) -> list[Any]:
    lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    if not 1 <= len(lines) <= MOST_INPUTS:
        raise UsageError(f"{file} has {len(lines)} inputs; an action has 1 to {MOST_INPUTS}.")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as problem:
        raise UsageError(f"{file} must have JSON on each line: {problem}.") from None
