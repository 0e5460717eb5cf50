"""`holdfast run`: a text for an agent, from the shell, and its answer."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import app_for, json_option, print_json, url_option
from holdfast.cli.run_output import Speaker
from holdfast.cli.target import calling_app, find, repeated
from holdfast.errors import NotFound
from holdfast.shown_text import escaped_lines
from holdfast.validation import did_you_mean


@click.command()
@click.argument("agent")
@click.argument("text")
@click.option("--session", help="Continue the session with this key or id; default: a new one.")
@click.option("--key", help="Idempotency key: the same key and text give the same run.")
@click.option("--wait", is_flag=True, help="Wait for the answer and print it. Ctrl-C ends the wait, not the run.")
@url_option
@json_option
def command(
    *, agent: str, text: str, session: str | None, key: str | None, wait: bool, url: str | None, as_json: bool
) -> None:
    """Enqueue a run of AGENT with TEXT; - reads the text from standard input. A worker runs it.

    AGENT is one that your program declares, or one in the store. With --wait on a terminal, the answer is shown while
    the model writes it.
    """
    prompt = sys.stdin.read() if text == "-" else text
    app = calling_app(url) if find(url, code=True).app else app_for(url)

    async def go() -> None:
        async with app:
            run = await (await _agent(app, agent)).enqueue(prompt, session=session, key=key)
            about = {"id": run.id, "session": run.session_id, "agent_name": agent}
            if not as_json:
                follows = f"`holdfast runs tail {run.id}{repeated(url)}` follows it"
                click.echo(f"run {run.id} of {agent} is enqueued; {follows}", err=wait)
            elif not wait:
                print_json(about)
            if wait:
                await _follow(run, url, about if as_json else None)

    asyncio.run(go())


async def _agent(app: Holdfast, name: str) -> Agent[Any]:
    """The agent of the program, or else of the store."""
    declared = core_of(app).defined
    if name in declared:
        found: Agent[Any] = declared[name]
        return found
    try:
        return await app.agents[name].load()
    except NotFound as problem:
        if not declared:
            raise
        known = f"The app declares {', '.join(sorted(declared))}.{did_you_mean(name, declared)}"
        raise NotFound(f"there is no agent {name} in this database. {known}") from problem


async def _follow(run: Run[Any], url: str | None, about: dict[str, str | None] | None) -> None:
    """Until the run has ended; `RunFailed` when it has no answer. `about` is what JSON says of it before the result."""
    if sys.stdout.isatty() and about is None:
        speaker = Speaker(where=repeated(url))
        async for event in run.stream():
            speaker.hear(event)
        await run.result()
        return
    result = await run.result()
    if about is not None:
        ended = {name: value for name, value in result.as_json().items() if name not in ("run_id", "session_id")}
        print_json({**about, **ended})
    else:
        click.echo(escaped_lines(result.text))
