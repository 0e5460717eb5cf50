"""`holdfast chat`: talk with an agent of an app in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import click

from holdfast.agents.handles import Agent
from holdfast.app import Holdfast
from holdfast.cli.options import load_app, url_option
from holdfast.cli.speaking import Speaker
from holdfast.errors import RunFailed, UsageError


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.argument("agent")
@click.option("--session", "key", help="Go on with the session of this key; default: a new one.")
@click.option("--thinking", is_flag=True, help="Show what the model thinks, where it says so.")
@url_option
def command(target: str, agent: str, key: str | None, thinking: bool, url: str | None) -> None:
    """Talk with AGENT of the app that MODULE:APP names. A worker runs in this process; an empty line or Ctrl-D ends it.

    What was said is stored: with --session you go on where you left off.
    """
    app = load_app(target)
    app.url = url or app.url
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_talk(app, agent, key, thinking=thinking))


async def _talk(app: Holdfast, name: str, key: str | None, *, thinking: bool) -> None:
    agent = find(app, name)
    async with app:
        session = await app.session(key)
        if key is not None:
            for message in (await session.messages())[-10:]:
                if message.text:
                    click.secho(f"{message.role}: {message.text}", dim=True)
        while (said := await asyncio.to_thread(_ask)) is not None:
            speaker = Speaker(thinking=thinking)
            run = await agent.enqueue(said, session=session)
            async for event in run.stream():
                speaker.hear(event)
            with contextlib.suppress(RunFailed):
                await run.result()
                continue
            click.secho(f"({run.state}: see `holdfast runs show {run.id}`)", dim=True)


def find(app: Holdfast, name: str) -> Agent[object]:
    found = app.defined.get(name)
    if found is None:
        known = ", ".join(sorted(app.defined)) or "none"
        raise UsageError(f"the app defines no agent {name!r}; it has {known}.")
    return found


def _ask() -> str | None:
    """The next line of the person; None when there is no more."""
    if sys.stdin.isatty():
        click.secho("you: ", bold=True, nl=False)
    line = sys.stdin.readline()
    return line.strip() or None
