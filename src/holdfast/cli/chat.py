"""`holdfast chat`: talk with an agent in the terminal, and decide there what it asks of people."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import click

from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.values import Inquiry
from holdfast.app import Holdfast, core_of
from holdfast.cli import target as named
from holdfast.cli.inquiries import about
from holdfast.cli.options import app_for, json_option, url_option
from holdfast.cli.run import RunPrinter, event_dict
from holdfast.errors import AlreadyDecided, NotFound, NoWorker, RunFailed, UsageError
from holdfast.events import ApprovalRequested, Event, InputRequested, QuestionAsked
from holdfast.kernel import codec
from holdfast.kernel.states import WorkerState
from holdfast.text import escaped
from holdfast.validation import did_you_mean

_ASKING = ApprovalRequested | QuestionAsked | InputRequested
_LOOK = 1.0  # seconds of silence after which somebody below the run may be asking
_FAILED, _LEFT_OPEN = 3, 1
_CAP = 1 << 28


@click.command()
@click.argument("target", metavar="[MODULE:APP]")
@click.argument("agent", required=False)
@click.option("--session", "key", help="Continue the session with this key or id; default: a new one.")
@click.option("--thinking", is_flag=True, help="Show the model's thinking, where the provider sends it.")
@click.pass_context
@url_option
@json_option
def command(  # noqa: PLR0917  the options of the command
    ctx: click.Context,
    target: str,
    agent: str | None,
    key: str | None,
    thinking: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Talk to AGENT of the app MODULE:APP, with a worker in this process. Without MODULE:APP, --app, HOLDFAST_APP or
    pyproject.toml names the app. If there is no app, or it does not declare AGENT, talk to an AGENT of the store that
    a running worker serves. An empty line or Ctrl-D ends the chat.

    The conversation is stored: --session continues it. When the agent asks a person, it asks you: y approves, n
    denies, anything else denies with that message, or answers a question. With --json every event is a line of JSON.
    Exit code 3: the last run failed; 1: it still waits for a person.
    """
    if agent is None and ":" in target:
        raise UsageError(f"name the agent to talk to: holdfast chat {target} AGENT.")
    module, name = (None, target) if agent is None else (target, agent)
    app = named.app_with_code(module, url) if named.find(url, module, code=True).app else app_for(url)
    stored = name not in core_of(app).defined
    if stored:
        core_of(app).binding.embedded = False  # a worker serves it elsewhere
        if not named.file_is_there(app.settings):
            find(app, name)
    talk = ChatTerminal(app, as_json=as_json, thinking=thinking)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(talk.run(name, key, stored=stored))
    ctx.exit(talk.code)


class ChatTerminal:
    """One conversation at the terminal; `code` is what the command exits with."""

    def __init__(self, app: Holdfast, *, as_json: bool, thinking: bool) -> None:
        self._app = app
        self._as_json = as_json
        self._thinking = thinking
        self._over = False  # nobody types any more
        self.code = 0

    async def run(self, name: str, key: str | None, *, stored: bool) -> None:
        agent = None if stored else find(self._app, name)
        async with self._app:
            talked = agent or await self._stored(name)
            session = await self._app.session(key)
            if key is not None:
                for message in (await session.messages())[-10:]:
                    self._show_message(message.role, message.text)
            while not self._over and (said := await self._typed("you: ")) is not None:
                await self._follow(await talked.enqueue(said, session=session))

    async def _stored(self, name: str) -> Agent[Any]:
        try:
            agent = await self._app.agents[name].load()
        except NotFound:
            if core_of(self._app).defined:
                find(self._app, name)
            raise
        if not any(row.status == WorkerState.ACTIVE for row in await self._app.workers.list()):
            raise NoWorker(
                f"no live worker serves agent {name!r}: start one with `holdfast worker MODULE:APP`, "
                f"or let `holdfast chat MODULE:APP {name}` run one here."
            )
        return agent

    async def _follow(self, run: Run[Any]) -> None:
        """Show what happens until the run has ended, or waits for somebody who is not here."""
        speaker = RunPrinter(thinking=self._thinking, here=True)
        asked: set[str] = set()
        self.code = 0
        async for event in paced(run.stream()):
            if event is not None and self._as_json:
                click.echo(codec.encode(event_dict(event), what="an event", cap=_CAP))
            elif event is not None:
                speaker.hear(event)
            if event is None or isinstance(event, _ASKING):
                for inquiry in await run.inquiries():
                    if inquiry.id not in asked and not self._over:
                        asked.add(inquiry.id)
                        speaker.end_line()
                        await self._decide(inquiry)
            if self._over and run.state != "completed":
                self.code = _LEFT_OPEN
                return
        try:
            await run.result()
        except RunFailed:
            self.code = _FAILED
            if not self._as_json:
                click.secho(f"({run.state}: see `holdfast runs show {run.id}`)", dim=True)

    async def _decide(self, inquiry: Inquiry) -> None:
        """Ask the person who is here until what is said can be done; without a word, it stays open."""
        if not self._as_json:
            click.secho(escaped(f"({inquiry.kind}: {about(inquiry)})"), dim=True)
        hint = "your answer: " if inquiry.kind == "question" else "y, n, or what to say: "
        while (said := await self._typed(hint)) is not None:
            try:
                await rule(self._app, inquiry, said)
            except AlreadyDecided as late:
                click.secho(f"({late})", dim=True, err=True)
            except UsageError as problem:
                click.secho(str(problem), err=True)
                continue
            return
        self._over = True
        click.secho(f"(inquiry {inquiry.id} stays open: `holdfast runs inquiries` lists it)", dim=True, err=True)

    def _show_message(self, role: str, text: str) -> None:
        if text and self._as_json:
            said = {"type": "message", "role": role, "text": text}
            click.echo(codec.encode(said, what="a message", cap=_CAP))
        elif text:
            click.secho(f"{role}: {text}", dim=True)

    async def _typed(self, hint: str) -> str | None:
        return await asyncio.to_thread(_ask, hint, quiet=self._as_json)


async def paced(stream: AsyncGenerator[Event, None]) -> AsyncIterator[Event | None]:
    """Each event as it comes, and None whenever there was none for a while."""
    while True:
        coming = asyncio.ensure_future(anext(stream, None))
        try:
            while not (await asyncio.wait({coming}, timeout=_LOOK))[0]:
                yield None
        except BaseException:
            coming.cancel()
            raise
        event = coming.result()
        if event is None:
            return
        yield event


async def rule(app: Holdfast, inquiry: Inquiry, said: str) -> None:
    """What a person typed, as a decision."""
    about_this: Any = {"digest": inquiry.digest, "by": "chat"}
    match said.lower():
        case _ if inquiry.kind == "question":
            await app.answer(inquiry.id, said, **about_this)
        case "y" | "yes":
            await app.approve(inquiry.id, **about_this)
        case "n" | "no":
            await app.deny(inquiry.id, **about_this)
        case _ if inquiry.kind == "continuation":
            await app.answer(inquiry.id, said, **about_this)
        case _:
            await app.deny(inquiry.id, message=said, **about_this)


def find(app: Holdfast, name: str) -> Agent[object]:
    """The agent that the app declares, or `UsageError` with those that it does."""
    found = core_of(app).defined.get(name)
    if found is None:
        known = ", ".join(sorted(core_of(app).defined)) or "none"
        close = did_you_mean(name, core_of(app).defined)
        raise UsageError(f"the app defines no agent {name!r}; it has {known}.{close}")
    made: Agent[object] = found
    return made


def _ask(hint: str, *, quiet: bool) -> str | None:
    """The next line of the person; None when there is no more."""
    if sys.stdin.isatty() and not quiet:
        click.secho(hint, bold=True, nl=False)
    line = sys.stdin.readline()
    return line.strip() or None
