"""`holdfast enqueue`: a job of your program, from the shell."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.options import all_of, json_option, print_json, text_of, url_option
from holdfast.cli.target import calling_app
from holdfast.client.declarations import limits_of
from holdfast.client.jobs import Job, JobFunction
from holdfast.client.queues import Queue
from holdfast.errors import UnknownJob, UsageError
from holdfast.text import escaped
from holdfast.validation import did_you_mean
from holdfast.workers.definitions import Definition


@click.command()
@click.argument("kind")
@click.argument("payload", required=False)
@click.option("--queue", help="Enqueue it in this queue instead of its own.")
@click.option("--key", help="Idempotency key: the same key and arguments give the same job.")
@click.option("--in", "delay", metavar="TIME", help="Start it this much later, such as 5m.")
@click.option("--wait", is_flag=True, help="Wait for its result and print it. Ctrl-C ends the wait, not the job.")
@url_option
@json_option
def command(  # noqa: PLR0913  the options of the command
    *,
    kind: str,
    payload: str | None,
    queue: str | None,
    key: str | None,
    delay: str | None,
    wait: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Enqueue a job of your program. KIND is its name, or its function's name if no other job has that.

    PAYLOAD is JSON: an object has its arguments by name, a list has them in order; - reads it from standard input. The
    job has the limits and retries that the program declares. A worker runs it.
    """
    app = calling_app(url)
    definition = _definition(app, kind)
    if queue is not None:
        definition = _moved(app, definition, queue)
    args, named = _arguments(payload)
    definition.signature.encode(tuple(args), named)  # an argument of a wrong name is refused, never taken for an option
    function: JobFunction[Any, Any] = JobFunction(core_of(app), definition, definition.function)

    async def enqueued() -> tuple[Job[Any], Any]:
        async with app:
            known = [] if queue is None else [row.name for row in await all_of(app.queues.list)]
            job = await function.options(key=key, delay=delay).enqueue(*args, **named)
            if queue is not None and queue not in {*known, *core_of(app).policies}:
                click.echo(f"queue {queue} is new.{did_you_mean(queue, known)}", err=True)
            if not as_json:
                again = "" if job.fresh or job.fresh is None else ", which was there already"
                click.echo(f"{definition.kind} is enqueued as job {job.id}{again}", err=wait)
            return job, await job.result() if wait else None

    job, result = asyncio.run(enqueued())
    if as_json:
        ended = {"state": job.state, "result": _plain(definition, result)} if wait else {}
        print_json({"id": job.id, "kind": definition.kind, "queue": definition.queue, "fresh": job.fresh, **ended})
    elif wait:
        click.echo(escaped(text_of(_plain(definition, result))))


def _definition(app: Holdfast, kind: str) -> Definition:
    jobs = {d.kind: d for d in core_of(app).registry.definitions.values() if d.layer is None}
    found = [jobs[kind]] if kind in jobs else [d for d in jobs.values() if d.kind.rpartition(".")[2] == kind]
    if len(found) == 1:
        return found[0]
    if kind in core_of(app).defined:
        raise UnknownJob(f"{kind} is an agent, not a job: `holdfast run {kind} TEXT` gives it a text.")
    known = ", ".join(sorted(d.kind for d in found) or sorted(jobs)) or "none"
    which = "more than one job" if found else "no job"
    short = [*jobs, *(each.rpartition(".")[2] for each in jobs)]
    raise UnknownJob(f"the app has {which} {kind!r}; it has {known}.{'' if found else did_you_mean(kind, short)}")


def _moved(app: Holdfast, definition: Definition, queue: str) -> Definition:
    """The same job in another queue, under that queue's limits."""
    policy = core_of(app).policies.get(queue, Queue())
    own = definition.limits if definition.limits is not None and definition.limits.own else None
    limits = own or limits_of(f"queue:{queue}", policy.concurrency, policy.rate, own=False)
    return replace(definition, queue=queue, limits=limits, fair=policy.fair)


def _arguments(payload: str | None) -> tuple[list[Any], Mapping[str, Any]]:
    if payload is None:
        return [], {}
    text = sys.stdin.read() if payload == "-" else payload
    try:
        given = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"""the payload is not JSON ({problem}); write it like '{{"name": "Oslo"}}'.""") from None
    match given:
        case dict():
            return [], given
        case list():
            return given, {}
        case _:
            raise UsageError("the payload is a JSON object with the arguments by name, or a list with them in order.")


def _plain(definition: Definition, result: Any) -> Any:
    """What the job returned, as it is stored."""
    return definition.signature.encode_result(result)
