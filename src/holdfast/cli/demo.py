"""`holdfast demo`: agents at work, two of three workers killed with -9, and the books that show what it cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from holdfast.agents.api.run import Run
from holdfast.app import Holdfast
from holdfast.cli.demo_agents import CALLS, TURNS, hf, note, writer
from holdfast.cli.options import json_option
from holdfast.cli.target import database_label
from holdfast.events import (
    Event,
    InputDelta,
    RunCreated,
    RunEnded,
    TextDelta,
    ThinkingDelta,
    ToolCalled,
    ToolEnded,
    TurnEnded,
    TurnRestarted,
    TurnStarted,
)
from holdfast.kernel.states import TERMINAL
from holdfast.models.spool import read_witness
from holdfast.pools.launchers import without_url
from holdfast.settings import environment_with
from holdfast.text import plural
from holdfast.values.jobs import JobRecord

# The books of `holdfast demo`: what the store recorded beside what witnesses saw, and one run as its events say.


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """The demo's figures. `problems` is empty when all is as promised."""

    runs: int
    completed: int
    recorded: int  # turns whose answer is stored
    unknown: int  # calls whose worker died before their answer was stored
    bought: int  # calls that the model saw
    rebought: int  # calls that neither explains
    calls: int  # of tools
    calls_completed: int
    calls_repeated: int  # started more than once
    problems: tuple[str, ...]


async def close_books(hf: Holdfast, towns: dict[str, Run[str]], witness: Path, journal: Path) -> DemoFigures:
    """Compare everything; nothing here is taken from one side alone."""
    asked = Counter(_turn_of(line["call"]) for line in read_witness(witness) if line["event"] == "sent")
    recorded = unknown = rebought = calls = completed_calls = 0
    problems: list[str] = []
    for run in await _family(hf, towns.values()):
        for turn in await run.turns():
            done = int(turn.state == "completed")
            recorded, unknown = recorded + done, unknown + turn.unknown
            rebought += max(0, asked[run.id, turn.number] - done - turn.unknown)
        for call in await run.calls():
            calls += call.child is None
            completed_calls += call.child is None and call.state == "completed"
    answers = {town: await run.refresh() for town, run in towns.items()}
    completed = sum(row.state == "completed" for row in answers.values())
    for town, row in answers.items():
        if row.state != "completed" or (row.output or {}).get("text") != note(town):
            problems.append(f"the run about {town} is {row.state}: {row.error or row.output}")
    if recorded != TURNS * len(towns):
        problems.append(f"{plural(recorded, 'turn is', 'turns are')} recorded, not {TURNS * len(towns)}")
    if rebought:
        problems.append(f"{plural(rebought, 'call')} to the model without an explanation")
    if completed_calls != CALLS * len(towns):
        problems.append(f"{completed_calls} tool calls are completed, not {CALLS * len(towns)}")
    begun = Counter(line["key"] for line in read_witness(journal) if line["event"] == "begun")
    if len(begun) != calls:
        problems.append(f"{calls} tool calls are recorded, {len(begun)} were seen")
    again = sum(times > 1 for times in begun.values())
    bought = asked.total()
    return DemoFigures(
        len(towns), completed, recorded, unknown, bought, rebought, calls, completed_calls, again, tuple(problems)
    )


def _turn_of(call: str) -> tuple[str, int]:
    run, turn, _ = call.split("/", 2)
    return run, int(turn)


async def _family(hf: Holdfast, runs: Iterable[Run[str]]) -> list[Run[str]]:
    found: list[Run[str]] = []
    for run in runs:
        found += [run, *(hf.runs[child.id] for child in await run.children())]
    return found


def timeline(events: Sequence[Event]) -> Iterator[tuple[float, str]]:
    """A run in lines: seconds since it was accepted, and what happened then."""
    first = events[0].at
    streamed = 0
    for event in events:
        seconds = (event.at - first).total_seconds()
        match event:
            case TextDelta(text=text) | ThinkingDelta(text=text) | InputDelta(text=text):
                streamed += len(text)
            case RunCreated(agent_name=name):
                yield seconds, f"run accepted, for agent {name}"
            case TurnStarted(turn=turn, model=model):
                streamed = 0
                yield seconds, f"turn {turn}   asked {model}"
            case TurnRestarted(turn=turn, attempt=attempt):
                yield seconds, f"turn {turn}   its worker was killed after {streamed} characters: attempt {attempt}"
                streamed = 0
            case TurnEnded(turn=turn, stop_reason=reason, output_tokens=tokens):
                yield seconds, f"turn {turn}   stored: {tokens} tokens, {reason}"
            case ToolCalled(name=name, input=given):
                yield seconds, f"         calls {name} {json.dumps(given, ensure_ascii=False)}"
            case ToolEnded(name=name, state=state):
                yield seconds, f"         {name} {state}"
            case RunEnded(state=state):
                yield seconds, f"run {state}"
            case _:
                pass


T = TypeVar("T")

TOWNS = ("Bergen", "Cadiz", "Delft", "Evora", "Ghent", "Lucca")
_WORKERS = 3
_SETTINGS = ("max_concurrent_streaming_runs=3", "script_pace=100ms", "prefetch=0")
_BAR = 30
_CLEAR = "\r\x1b[2K"
_MOST = 50.0  # seconds; it takes about fifteen
_PICKY = 2.0  # seconds in which to find the best worker to kill
_INTO = 0.25  # seconds into a turn or a tool before the kill


class Kill(NamedTuple):
    """One kill -9, and who continued with the job that it hit."""

    pid: int
    during: str
    run: str
    by: int
    seconds: float


@click.command()
@click.option("--url", help="Database to use; default: a temporary SQLite file.")
@click.option("--web", is_flag=True, help="Then show its store in the browser, with more work and workers to kill.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="The port of --web on loopback; default: a free one."
)
@json_option
def command(url: str | None, web: bool, port: int, as_json: bool) -> None:
    """Watch agents survive the death of their workers.

    Six runs, three workers, no key and no service. One worker is killed with -9 in the middle of a turn, another in
    the middle of a tool. Exits with 1 if anything is not as promised.
    """
    if web:
        from holdfast.cli.demo_web import need_web

        need_web()  # now, not after a quarter of a minute
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        hf.settings = hf.settings.override({"url": url or f"sqlite:///{Path(folder) / 'demo.db'}"})
        crew: dict[int, subprocess.Popen[bytes]] = {}
        try:
            demo = Demo(Path(folder), crew, quiet=as_json)
            books = asyncio.run(demo.play())
            if web and not books.problems:
                demo.show(port)
        finally:
            for process in crew.values():
                _end(process)
    if books.problems:
        raise click.ClickException("the demo did not end as expected:\n  " + "\n  ".join(books.problems))


class Demo:
    def __init__(self, folder: Path, crew: dict[int, subprocess.Popen[bytes]], *, quiet: bool) -> None:
        self._witness = folder / "witness.jsonl"
        self._journal = folder / "tools.jsonl"
        self._log = folder / "workers.log"
        self._crew = crew
        self._quiet = quiet
        self._command: list[str] = []
        self._runs: dict[str, Run[str]] = {}
        self._seen: dict[str, float] = {}  # calls of the model that are under way, since when
        self._begun = self._picky_until = time.monotonic()

    async def play(self) -> DemoFigures:
        try:
            async with asyncio.timeout(_MOST):
                return await self._play()
        except TimeoutError:
            raise click.ClickException(f"the demo did not end within {_MOST:.0f} s:\n{self._said()}") from None
        finally:
            await hf.close()

    async def _play(self) -> DemoFigures:
        await hf.migrate()
        self._say(f"Six runs of an agent, three workers, two of them killed.  {database_label(hf.settings)}")
        await self._accept()
        self._start()
        kills = [await self._kill_in_a_turn(), await self._kill_in_a_tool()]
        await self._until(self._all_ended)
        taken = time.monotonic() - self._begun
        self._fact("completed", f"{plural(len(TOWNS), 'run')}, {taken:.1f} s after the first was accepted")
        books = await close_books(hf, self._runs, self._witness, self._journal)
        lines = list(timeline(await hf.runs[kills[0].run].events()))
        if self._quiet:
            shown = [{"seconds": round(at, 3), "text": " ".join(text.split())} for at, text in lines]
            figures = {**asdict(books), "kills": [kill._asdict() for kill in kills], "seconds": round(taken, 2)}
            click.echo(json.dumps({"ok": not books.problems, **figures, "timeline": shown}, indent=2))
        else:
            self._report(books, lines)
        return books

    async def _accept(self) -> None:
        self._act(
            "Enqueue",
            f"Each run writes a note about a town: {TURNS} turns, three tool calls, and a second agent that checks.",
            "`enqueue` returns when the run is committed. No worker exists yet.",
        )
        for town in TOWNS:
            run = await writer.enqueue(f"Write a note about {town}.", variables={"journal": str(self._journal)})
            self._runs[town] = run
        self._fact("accepted", f"{plural(len(self._runs), 'run')}, for {', '.join(TOWNS)}")

    def _start(self) -> None:
        self._act(
            "Work",
            "Three processes share the work through the database alone. The model is scripted: no key, no network.",
            "It writes down every call it is asked for in a file of its own: the witness of what was bought.",
        )
        command = [sys.executable, "-m", "holdfast", "worker", "holdfast.cli.demo_agents:hf", "--url", hf.settings.url]
        options = ["--log-level", "warning", "--set", f"script_witness={self._witness}"]
        for setting in _SETTINGS:
            options += ["--set", setting]
        self._command = [*command, *options]
        for _ in range(_WORKERS):
            self._start_one()
        self._fact("started", f"workers {', '.join(map(str, self._crew))}")

    def _start_one(self) -> None:
        with open(self._log, "ab", opener=lambda file, flags: os.open(file, flags, 0o600)) as log:
            command, url = without_url(self._command)
            told = environment_with(url)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=told)
        self._crew[process.pid] = process

    def show(self, port: int) -> None:
        """The store of this demo in the browser, until Ctrl-C."""
        from holdfast.cli.demo_web import DemoCrew, show_demo

        asyncio.run(show_demo(DemoCrew(self._crew, self._start_one), str(self._journal), port))

    async def _kill_in_a_turn(self) -> Kill:
        self._act(
            "kill -9 in the middle of a turn",
            "A worker dies while the model is answering. The turns before are stored, and are not asked for again;",
            "whether this one was billed nobody can know, so it is counted as unknown and asked for once more.",
        )
        job, turn = await self._until(self._a_turn_under_way)
        pid = await self._pid_of(job)
        kill = await self._kill(pid, job, f"turn {turn} of {self._name(job.id)}")
        self._fact("resumed", f"turn {turn} by worker {kill.by}, {kill.seconds:.1f} s after the kill")
        return kill

    async def _kill_in_a_tool(self) -> Kill:
        self._act(
            "kill -9 in the middle of a tool",
            "A tool runs at least once: another worker calls it again, with the same idempotency key.",
            'A tool that must not be repeated says effect="once", and is not.',
        )
        self._picky_until = time.monotonic() + _PICKY
        job = await self._until(self._a_tool_at_work)
        pid = await self._pid_of(job)
        kill = await self._kill(pid, job, f"tool {job.kind.removeprefix('tool:')}")
        self._fact("resumed", f"by worker {kill.by}, {kill.seconds:.1f} s after the kill, under key {job.id[:8]}")
        return kill

    async def _kill(self, pid: int, job: JobRecord, during: str) -> Kill:
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        self._fact("kill -9", f"worker {pid}, during {during}")

        async def taken_over() -> JobRecord | None:
            now = await hf.jobs.get(job.id)
            return now if now.token != job.token and (now.worker is not None or now.state in TERMINAL) else None

        row = await self._until(taken_over)
        run = job.id if job.kind.startswith("agent:") else (await hf.runs.call(job.id)).run
        return Kill(pid, during, run, await self._pid_of(row), time.monotonic() - killed)

    async def _a_turn_under_way(self) -> tuple[JobRecord, int] | None:
        """A turn, not a run's first, that its model has been at for a moment."""
        lines = read_witness(self._witness)
        done = {line["call"] for line in lines if line["event"] == "done"}
        now = time.monotonic()
        for call in (line["call"] for line in lines if line["event"] == "sent" and line["call"] not in done):
            run, turn, _ = call.split("/", 2)
            if int(turn) > 1 and run in self._ids() and now - self._seen.setdefault(call, now) > _INTO:
                job = await hf.jobs.get(run)
                return (job, int(turn)) if job.worker is not None else None
        return None

    async def _a_tool_at_work(self) -> JobRecord | None:
        """A tool that has been at it for a moment; at first only where nothing was rescued before, which would wait."""
        running = await hf.jobs.list(state="running", limit=1_000)
        tried = {row.worker for row in running if row.rescues and time.monotonic() < self._picky_until}
        done = {line["key"] for line in read_witness(self._journal) if line["event"] == "done"}
        now = time.monotonic()
        for row in running:
            fit = row.kind.startswith("tool:") and row.worker not in tried and row.id not in done
            if fit and now - self._seen.setdefault(row.id, now) > _INTO:
                return row
        return None

    async def _all_ended(self) -> bool:
        return all([(await run.refresh()).state in ("completed", "failed", "cancelled") for run in self._runs.values()])

    async def _until(self, look: Callable[[], Coroutine[Any, Any, T | None]]) -> T:
        """Look until there is something, and show how far the runs are."""
        while not (found := await look()):
            await self._draw()
            if all(process.poll() is not None for process in self._crew.values()):
                raise click.ClickException(f"every worker ended:\n{self._said()}")
            if await self._all_ended():
                if found := await look():  # it may have come since the last look
                    return found
                raise click.ClickException("the runs were over before the worker could be killed; try again.")
            await asyncio.sleep(0.05)
        return found

    async def _pid_of(self, job: JobRecord) -> int:
        return next((row.pid for row in await hf.workers.list(all=True) if row.seq == job.worker), 0)

    def _ids(self) -> set[str]:
        return {run.id for run in self._runs.values()}

    def _name(self, id: str) -> str:
        return next(f"the run about {town}" for town, run in self._runs.items() if run.id == id)

    def _said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    async def _draw(self) -> None:
        if self._quiet or not sys.stdout.isatty():
            return
        rows = await hf.runs.list(limit=1_000)
        done, all_turns = sum(row.turns for row in rows), TURNS * len(TOWNS)
        ended = sum(row.state == "completed" and row.parent is None for row in rows)
        bar = "#" * (done * _BAR // all_turns)
        click.echo(f"{_CLEAR}   [{bar:.<{_BAR}}] {done}/{all_turns} turns, {ended}/{len(TOWNS)} runs ", nl=False)

    def _act(self, title: str, *lines: str) -> None:
        self._say("")
        self._say(title)
        for line in lines:
            self._say(f"   {line}")

    def _fact(self, word: str, text: str) -> None:
        self._say(f"   {word:<10} {text}")

    def _say(self, text: str) -> None:
        """A line of its own, in place of the progress bar."""
        if not self._quiet:
            click.echo(f"{_CLEAR}{text}" if sys.stdout.isatty() else text)

    def _report(self, books: DemoFigures, lines: list[tuple[float, str]]) -> None:
        self._act(
            "The books",
            "What Holdfast recorded, beside what the model says it was asked for.",
        )
        self._fact("recorded", f"{plural(books.recorded, 'turn')}, each stored once")
        self._fact("unknown", f"{plural(books.unknown, 'call')} whose worker died before the answer was stored")
        extra = books.bought - books.recorded
        unsent = f"; {books.unknown - extra} were never sent" if books.unknown > extra else ""
        self._fact("bought", f"{plural(books.bought, 'call')}, by the witness: {books.recorded} + {extra}{unsent}")
        self._fact("rebought", f"{plural(books.rebought, 'recorded answer was', 'recorded answers were')} bought again")
        self._fact(
            "tools",
            f"{books.calls_completed} of {books.calls} calls completed once, {books.calls_repeated} begun twice",
        )
        self._act("The events of the run that was hit first")
        for seconds, text in lines:
            self._say(f"   {seconds:6.2f} s  {text}")
        self._act(
            "Next",
            "holdfast demo --web                   the same, then its store in the browser",
            "holdfast demo --url postgresql://…    the same on PostgreSQL",
            "examples/quickstart.py, chat.py       an agent of your own, in a dozen lines",
            "docs/agents.md                        the guide",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
        return
    process.kill()
    process.wait()
