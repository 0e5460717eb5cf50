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
from holdfast.cli.target import calling_app, find, repeated
from holdfast.errors import NotFound
from holdfast.events import (
    ApprovalRequested,
    Event,
    InputGiven,
    InputRequested,
    ModeChosen,
    QuestionAsked,
    RunEnded,
    TextDelta,
    ThinkingDelta,
    ToolCalled,
    ToolEnded,
    TurnFailed,
    TurnRestarted,
    wire,
)
from holdfast.kernel import codec
from holdfast.text import escaped, escaped_lines
from holdfast.validation import did_you_mean

# The events of a run on a terminal, as they come.


class RunPrinter:
    """Writes text as it is said, and one line for everything else that a person wants to know."""

    def __init__(self, *, thinking: bool = False, where: str = "", here: bool = False) -> None:
        """`where` is part of the commands that it names. `here`: who listens is asked what people are asked."""
        self._thinking = thinking
        self._where = where
        self._here = here
        self._in_line = False

    def hear(self, event: Event) -> None:
        match event:
            case TextDelta(text=text):
                click.echo(self._lines(text), nl=False)
                self._in_line = not text.endswith("\n")
            case ThinkingDelta(text=text) if self._thinking:
                click.echo(click.style(self._lines(text), dim=True), nl=False)
                self._in_line = True
            case ToolCalled(name=name, input=given):
                shown = codec.encode(given, what="an input", cap=1 << 28)
                self._line(f"[{name} {shown if len(shown) < 120 else shown[:117] + '...'}]")
            case ToolEnded(name=name, state=state) if state != "completed":
                self._line(f"[{name} {state}]")
            case TurnRestarted(turn=turn):
                self._line(f"(turn {turn} starts again, because its worker died or the provider failed)")
            case TurnFailed(message=message):
                self._line(f"(the provider failed: {message})")
            case RunEnded(state=state, result=result):
                if result is None:
                    self._line(f"({state})")
                elif result.outcome != "answered":
                    self._line(f"({result.outcome}{f': {result.limit}' if result.limit else ''})")
                self.end_line()
            case _:
                asked = isinstance(event, ApprovalRequested | QuestionAsked | InputRequested)
                if not (asked and self._here) and (note := _about_people(event, self._where)) is not None:
                    self._line(note)

    def end_line(self) -> None:
        if self._in_line:
            click.echo()
            self._in_line = False

    def _line(self, text: str) -> None:
        self.end_line()
        click.secho(escaped(text), dim=True)

    @staticmethod
    def _lines(text: str) -> str:
        return escaped_lines(text)


def _about_people(event: Event, where: str) -> str | None:
    match event:
        case ApprovalRequested(call=call, inquiry=inquiry, kind=kind):
            shown = codec.encode(call.input, what="an input", cap=1 << 28)
            return f"(waits for a person: {kind} of {call.name} {shown}; holdfast runs approve {inquiry}{where})"
        case QuestionAsked(question=question, inquiry=inquiry):
            return f"(asks a person: {question}; holdfast runs answer {inquiry} TEXT{where})"
        case InputRequested(reason=reason, inquiry=inquiry):
            return f"(waits for a person: {reason}; holdfast runs approve {inquiry}{where})"
        case InputGiven(verdict=verdict, by=by):
            return f"({verdict}{f' by {by}' if by else ''})"
        case ModeChosen(mode=mode, reason=reason):
            return f"({mode}: {reason})"
        case _:
            return None


def event_dict(event: Event) -> dict[str, Any]:
    """An event for programs."""
    type, data = wire(event)
    return {"type": type, **data}


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
        speaker = RunPrinter(where=repeated(url))
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
