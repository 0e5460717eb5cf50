"""`holdfast machine`: check and draw machines, run, resume and signal executions, list and show them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast import values
from holdfast.app import Holdfast, core_of, machines_of
from holdfast.cli.options import ask, json_option, limit_option, print_json, print_pairs, url_option
from holdfast.cli.short_ids import whole
from holdfast.cli.tables import Column, Listing, Row, TableStyle, look_at, print_listed, print_table, wide_option
from holdfast.cli.target import app_for, app_option, app_with_code, find, program_for
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.ids import is_id
from holdfast.kernel.states import State
from holdfast.kernel.why import AwaitsSignal
from holdfast.machines import api
from holdfast.machines.agent_calls import unknown_agents
from holdfast.machines.api import ExecutionHandle, Machine, execution_job, resume_execution, stored_order
from holdfast.machines.bundle import Bundle, Finder, gather, load_file
from holdfast.machines.drawing import mermaid, svg
from holdfast.machines.graph import MachineGraph
from holdfast.machines.hooks import HookRegistry
from holdfast.machines.layer import KIND, LAYER
from holdfast.machines.orders import QUEUE
from holdfast.machines.problems import BadMachine, Findings, MachineProblem
from holdfast.machines.run import import_hooks, named_pair, play_here, read_input, role_of, take_back
from holdfast.machines.stepping import MachineEvent
from holdfast.text import shown
from holdfast.values.jobs import JobRecord, Why, why_of
from holdfast.workers.role import Role

_EXECUTIONS = Listing(
    "executions",
    "Run one with `holdfast machine run FILE`.",
    (
        Column("ID", "id", of="job"),
        Column("MACHINE", "name"),
        Column("STATE", "state"),
        Column("AT"),
        Column("STEP", "number", rank=2),
        Column("CREATED", "time", rank=1),
    ),
)
_EVENTS = (Column("STEP", "number"), Column("EVENT", "state"), Column("STATE"), Column("DETAIL", "prose"))
_MOST_PAGES = 20  # of all jobs, that are read for executions

hooks_option = click.option(
    "--hooks", "hooks", multiple=True, metavar="[NAME=]MODULE:OBJECT", help="Hooks that the machine names."
)
bind_option = click.option(
    "--bind", "bound", multiple=True, metavar="NAME=FILE", help="The file that a name in the machine stands for."
)


@click.group()
def command() -> None:
    """Check, run, resume, signal, list, show and draw machines."""


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False))
@bind_option
@app_option
@json_option
@click.pass_context
def check(ctx: click.Context, files: Sequence[str], bound: Sequence[str], as_json: bool) -> None:
    """Check machines and all that they run: every mistake, with file, line and column. Exits with 1 if there is one.

    With --app, agents that the program does not define are mistakes too.
    """
    program = app_with_code(None, None) if find(None).app else None
    found = [problem for file in files for problem in _problems(file, bound, program)]
    if as_json:
        print_json([{**each.at._asdict(), "message": each.message, "warning": each.is_warning} for each in found])
    for problem in [] if as_json else found:
        click.echo(str(problem))
    wrong = any(not problem.is_warning for problem in found)
    if not wrong and not as_json:
        click.echo(f"{len(files)} checked, nothing wrong" if len(files) > 1 else f"{files[0]}: nothing wrong")
    ctx.exit(1 if wrong else 0)


def _problems(file: str, bound: Sequence[str], program: Holdfast | None) -> list[MachineProblem]:
    found, known = Findings(), {} if program is None else machines_of(program).files
    try:
        finder = Finder({**known, **dict(map(named_pair, bound))})
        bundle = gather(load_file(file), finder.find, found, needed=False)
    except BadMachine as problem:
        return list(problem.problems)
    for machine in bundle.machines.values():
        _check_agents(machine, program, found)
    warnings = [warning for machine in bundle.machines.values() for warning in machine.warnings]
    return sorted({*found.problems, *warnings}, key=lambda each: each.at)


def _check_agents(machine: MachineGraph, program: Holdfast | None, found: Findings) -> None:
    defined = [] if program is None else [*core_of(program).defined]
    for at, name in unknown_agents(machine, defined):
        if program is None:
            found.warn(at, f"agent {name!r} is not in this file: name your program with --app to look for it there.")
        else:
            found.unknown(at, "agent in this program called", name, {*defined, *machine.agents})


@command.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--input", "given", default="{}", metavar="JSON", help="Its input, a JSON object.")
@click.option("--execution-id", help="Names the execution: the same id and input is the same execution.")
@hooks_option
@bind_option
@url_option
@click.pass_context
def run(ctx: click.Context, /, file: str, given: str, execution_id: str | None, url: str | None, **more: Any) -> None:
    """Run a machine here and print its output. Killed, and run again with the same --execution-id, it continues.

    With --app, it has the hooks, agents and tools of the program. It exits with 75 if the execution waits for a signal
    that nobody has sent: send it, and resume.
    """
    app = program_for(url)

    async def running() -> int:
        machine = _machine(app, file, more)
        try:
            execution = await machine.enqueue(read_input(given), execution_id=execution_id)
            click.echo(f"execution {execution.id}", err=True)
            core = core_of(app)
            return await play_here(core, execution, role=role_of(core, machine.bundle, machine.queue))
        finally:
            await app.close()

    ctx.exit(asyncio.run(running()))


def _machine(app: Holdfast, file: str, more: Mapping[str, Any]) -> Machine[Any]:
    """The machine of a file: as the program has declared it, or with the hooks that are named here."""
    graph, machines = load_file(file), machines_of(app)
    declared = machines.declared.get(graph.name)
    if declared is not None and declared.graph.text == graph.text and not more["hooks"] and not more["bound"]:
        return declared
    hooks = import_hooks(more["hooks"]) or machines.engine.hooks_of(graph.name)
    queue = QUEUE if declared is None else declared.queue
    return app.machine(file, hooks=hooks, machines=dict(map(named_pair, more["bound"])), queue=queue)


@command.command()
@click.argument("id")
@click.option(
    "--new", "file", type=click.Path(dir_okay=False), help="Continue with the machine that this file has now."
)
@hooks_option
@bind_option
@url_option
@click.pass_context
def resume(ctx: click.Context, /, id: str, file: str | None, url: str | None, **more: Any) -> None:
    """Continue an execution here, from its last checkpoint, with the machine that it began with.

    One that failed or was cancelled continues as a new execution, in the state in which it failed. With --new, the
    execution continues with what the file says now, and the old one is cancelled. One that a living process runs is
    refused; one whose process was killed continues at once.
    With --app, it has the hooks, agents and tools of the program.
    """
    app_for(url)  # there must be a database
    app = program_for(url)

    async def resuming() -> int:
        core = core_of(app)
        try:
            await core.opened()
            found, role = await _resumed(app, await _execution_id(app, id), file, more)
            return await play_here(core, found, alone=True, role=role)
        finally:
            await app.close()

    ctx.exit(asyncio.run(resuming()))


async def _execution_id(app: Holdfast, given: str) -> str:
    """From an id, its beginning, or the name that the execution was started with."""
    named = execution_job(given)
    try:
        await app.jobs.get(named)
    except NotFound:
        found = await whole(app, given, "job")
        if is_id(found):
            return found
        raise NotFound(f"there is no execution {given[:80]} in this database.") from None
    return named


async def _resumed(app: Holdfast, id: str, file: str | None, more: dict[str, Any]) -> tuple[ExecutionHandle[Any], Role]:
    core, job, machines = core_of(app), app.jobs[id].id, machines_of(app)
    row, hooks = await app.jobs.get(id), import_hooks(more["hooks"])
    order, bundle = await stored_order(core, job)
    if file is not None:
        bundle = _machine(app, file, more).bundle
        if bundle.main != order.machine:
            raise UsageError(f"execution {id} is of machine {order.machine!r}, and {file} is {bundle.main!r}.")
    for machine in bundle.machines.values():
        machines.serve(machine, HookRegistry(hooks), row.queue, declared=hooks is not None)
    role = role_of(core, bundle, row.queue)
    if file is None and row.state not in ("failed", "cancelled"):
        return ExecutionHandle(core, job), role
    await take_back(core, job)
    again = await resume_execution(core, job, None if file is None else bundle, row.queue)
    if file is not None:
        click.echo(f"execution {id} continues with {file} as it is now, as a new execution", err=True)
    click.echo(f"execution {again.id}", err=True)
    return again, role


@command.command()
@click.argument("id")
@click.option("--payload", "message", default="null", metavar="JSON", help="What it says: the `output` of the state.")
@url_option
def signal(id: str, message: str, url: str | None) -> None:
    """Send a signal to an execution that waits for one, on the channel on which it waits.

    A worker of the machine continues it then; without one, `holdfast machine resume` does.
    """
    try:
        payload = json.loads(message)
    except ValueError as problem:
        raise UsageError(f'--payload is JSON, such as \'{{"by": "ann"}}\': {problem}.') from None

    async def sending(app: Holdfast) -> tuple[str, str]:
        job = await app.jobs.get(await _execution_id(app, id))
        if not api.is_execution(job):
            raise UsageError(f"job {job.id} is no execution of a machine.")
        reasons = await core_of(app).reasons(app.jobs[job.id].id)
        channels = [reason.channel for reason in reasons if isinstance(reason, AwaitsSignal)]
        if not channels:
            now = str(why_of(reasons)) or f"it is {job.state}"
            raise UsageError(f"execution {job.id} does not wait for a signal: {now}.")
        await app.signal(channels[0], payload)
        return job.id, channels[0]

    execution, channel = ask(url, sending)
    click.echo(f"execution {execution} has a signal on channel {shown(channel)}")


class _Execution(NamedTuple):
    job: JobRecord
    at: str
    step: int


@command.command()
@click.option("--machine", "name", help="Only executions of this machine.")
@click.option("--state", type=click.Choice([str(state) for state in State]), help="Only executions in this state.")
@limit_option
@url_option
@wide_option
@json_option
def ls(*, url: str | None, name: str | None, state: str | None, limit: int, wide: bool, as_json: bool) -> None:
    """List executions, newest first, with the state of the machine that each is in."""

    async def found(app: Holdfast) -> tuple[list[_Execution], list[Row], TableStyle]:
        executions = [await _located(app, job) for job in await _jobs(app, name, state, limit)]
        rows: list[Row] = [
            (each.job.id, each.job.kind.removeprefix(KIND), each.job.state, each.at, each.step, each.job.created_at)
            for each in executions
        ]
        return executions, rows, await look_at(app, _EXECUTIONS.columns, rows, wide=wide)

    executions, rows, look = ask(url, found)
    if as_json:
        print_json([{**values.as_json(each.job), "at": each.at, "step": each.step} for each in executions])
        return
    print_listed(_EXECUTIONS, rows, look, filtered=name is not None or state is not None)


async def _jobs(app: Holdfast, name: str | None, state: str | None, limit: int) -> list[JobRecord]:
    kind = None if name is None else f"{KIND}{name}"
    jobs: list[JobRecord] = []
    after: str | None = None
    for _ in range(_MOST_PAGES):
        page = await app.jobs.list(state=state, kind=kind, limit=1_000, after=after)
        jobs += [job for job in page if job.layer == LAYER]
        if page.next is None or len(jobs) >= limit:
            break
        after = page.next
    return jobs[:limit]


async def _located(app: Holdfast, job: JobRecord) -> _Execution:
    execution: ExecutionHandle[Any] = ExecutionHandle(core_of(app), app.jobs[job.id].id)
    place = await execution.place()
    return _Execution(job, "" if place is None else place.state, 0 if place is None else place.step)


@command.command()
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> None:
    """Show one execution: where it is, its context, what has happened to it, and why it does not continue."""

    async def found(app: Holdfast) -> tuple[api.ExecutionDetail, list[MachineEvent], list[Row], TableStyle]:
        job = await app.jobs.get(await _execution_id(app, id))
        events = await ExecutionHandle[Any](core_of(app), app.jobs[job.id].id).history()
        detail = await api.detailed(core_of(app), job)
        rows: list[Row] = [(each.step, each.name, each.state, each.detail) for each in events]
        return detail, events, rows, await look_at(app, _EVENTS, rows)

    detail, events, rows, look = ask(url, found)
    told = values.as_json(detail)
    if as_json:
        print_json({**told, "events": events})
        return
    print_pairs({**told, "why": str(Why(detail.why))})
    print_table(_EVENTS, rows, look, empty="it has not begun")


@command.command()
@click.argument("what")
@click.option("--mermaid", "as_text", is_flag=True, help="Print Mermaid instead of SVG.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write it into this file; default: print it.")
@url_option
def draw(what: str, as_text: bool, output: str | None, url: str | None) -> None:
    """Draw a machine: WHAT is its file, or an execution, whose current state is marked."""
    current: str | None = None
    if Path(what).is_file():
        machine = load_file(what)
    else:
        bundle, current = ask(url, lambda app: _where(app, what))
        machine = bundle.machines[bundle.main]
    picture = mermaid(machine, current) if as_text else svg(machine, current)
    if output is None:
        click.echo(picture, nl=False)
    else:
        Path(output).write_text(picture, "utf-8")


async def _where(app: Holdfast, id: str) -> tuple[Bundle, str | None]:
    job = app.jobs[await _execution_id(app, id)].id
    order, bundle = await stored_order(core_of(app), job)
    place = await ExecutionHandle[Any](core_of(app), job).place()
    return bundle.of(order.machine), None if place is None else place.state
