"""Execution of a plan: its tasks in order, each fed with what an earlier one wrote, until one fails."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agw.processes import ProcessLimits, ToolCall, ToolExit, run_tool
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.resp.frames import AFTER_AUTH
from holdfast.resp.plan import UnixPlan, UnixTask

# The tools of a worker: names that plans may use, each resolved to one absolute path when the worker starts.


CARD_CAP = 65_536
# What a plan may use if the owner of the worker names nothing. Each turns what it reads into what it writes, and has no
# option or argument that runs a program or writes a file. `sort` has both and `uniq IN OUT` writes: they are missing,
# as are `sed`, `awk`, `find`, `xargs`, `tar`, `tee`, `split`. base64 has -o FILE on other systems than Linux.
TEXT_TOOLS = (
    *(["base64"] if sys.platform == "linux" else []), "cat", "cksum", "column", "comm", "cut", "echo", "expand", "fmt",
    "fold", "grep", "head", "join", "jq", "md5sum", "nl", "od", "paste", "printf", "rev", "seq", "sha1sum", "sha256sum",
    "sha512sum", "tac", "tail", "tr", "unexpand", "wc",
)  # fmt: skip


class CommandNotAllowed(UsageError):
    """The plan names a command that this worker does not have; nothing of it was run."""


@dataclass(frozen=True, slots=True)
class UnixTools:
    """`cards` are what agentic units say of themselves when they are called with --describe."""

    paths: Mapping[str, str]
    units: tuple[str, ...] = ()
    cards: Mapping[str, object] = field(default_factory=dict)

    @property
    def tools(self) -> list[str]:
        return [name for name in self.paths if name not in self.units]

    def path_of(self, command: str) -> str:
        path = self.paths.get(command)
        if path is None:
            raise CommandNotAllowed(f"{command[:64]!r} is not a tool of this worker")
        return path


def find_tools(names: Iterable[str], *, search: str | None = None) -> dict[str, str]:
    """Where each tool is. `search` is a PATH; default: the one of this process."""
    found: dict[str, str] = {}
    for name in names:
        if not name or "/" in name:
            raise UsageError(f"a tool is given by its name, not by a path: {name!r}.")
        path = shutil.which(name, path=search)
        if path is None:
            raise UsageError(f"there is no tool {name!r} on PATH.")
        found[name] = str(Path(path).absolute())
    return found


def find_text_tools(*, search: str | None = None) -> dict[str, str]:
    """Those of the text tools that are there, for a worker whose owner names none. It may have no sandbox."""
    return find_tools([name for name in TEXT_TOOLS if shutil.which(name, path=search)], search=search)


def read_card(name: str, output: bytes) -> object:
    """The description that a unit has printed."""
    try:
        card = json.loads(output[:CARD_CAP].decode())
    except (ValueError, RecursionError):
        raise UsageError(f"{name} --describe does not print JSON, so it is not an agentic unit.") from None
    if not isinstance(card, dict) or not isinstance(card.get("name"), str):
        raise UsageError(f"{name} --describe prints no card with a name.")
    return card


REPORTED = 65_536  # bytes of each stream that a result has
LARGEST_UPDATE = AFTER_AUTH.bulk  # bytes of a report as JSON: the gateway closes the connection of a larger one


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What came of a plan: the results of the tasks that were run, and why it failed if it did."""

    results: tuple[Mapping[str, Any], ...]
    error: str = ""

    @property
    def status(self) -> str:
        return "failed" if self.error else "completed"


@dataclass(slots=True)
class PlanPlace:
    """How far a plan is."""

    task: int = 0  # the number of the one that runs; 0: none has begun
    tasks: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def as_json(self) -> dict[str, int]:
        """As JOB.STATUS shows it."""
        return {"current_task": self.task, "progress_percent": 100 * (self.task - 1) // self.tasks} if self.task else {}


async def execute(  # noqa: PLR0917  what a plan is run with
    plan: UnixPlan,
    input: object,
    toolbox: UnixTools,
    limits: ProcessLimits,
    clock: Clock,
    place: PlanPlace | None = None,
) -> PlanResult:
    """Run a plan. Whatever it, its input or a tool does wrong fails this job and nothing else.

    `place` always says how far it is.
    """
    place = place or PlanPlace()
    place.tasks = len(plan.tasks)
    try:
        commands = [(task, toolbox.path_of(task.command), task.arguments(input)) for task in plan.tasks]
    except UsageError as problem:  # before anything was run
        return PlanResult((), str(problem))
    results: list[Mapping[str, Any]] = []
    outputs: dict[int, ToolExit] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-agw-", ignore_cleanup_errors=True) as folder:
        for task, path, args in commands:
            place.task = task.number
            source = outputs.get(task.input_from) if task.input_from is not None else None
            if source is not None and source.stdout_cut:
                return PlanResult(tuple(results), f"task {task.input_from} wrote more than {limits.output} bytes")
            stdin = source.stdout if source is not None else None
            try:
                ran = await run_tool(ToolCall(path, args, stdin, Path(folder), task.timeout), limits, clock)
            except OSError as problem:
                return PlanResult(tuple(results), f"task {task.number} cannot be started: {problem.strerror}")
            outputs[task.number] = ran
            results.append(result_of(task, ran))
            if ran.timed_out:
                return PlanResult(tuple(results), f"timeout: task {task.number} took more than {task.timeout} s")
            if ran.exit_code != 0:
                return PlanResult(tuple(results), f"task {task.number} ended with exit code {ran.exit_code}")
    return PlanResult(tuple(results))


def result_of(task: UnixTask, ran: ToolExit) -> dict[str, Any]:
    """A task's result as it is reported: text where the bytes are UTF-8, else base64, and what was cut off says so."""
    return {
        "task_number": task.number,
        "command": task.command,
        "exit_code": ran.exit_code,
        "duration_ms": ran.duration_ms,
        **_stream("stdout", ran.stdout, cut=ran.stdout_cut),
        **_stream("stderr", ran.stderr, cut=ran.stderr_cut),
        **({"timed_out": True} if ran.timed_out else {}),
    }


def _stream(name: str, data: bytes, *, cut: bool) -> dict[str, Any]:
    cut = cut or len(data) > REPORTED
    text = _text(data[:REPORTED], cut=cut)
    notes: dict[str, Any] = {f"{name}_truncated": True} if cut else {}
    if text is None:
        return {name: base64.b64encode(data[:REPORTED]).decode(), f"{name}_encoding": "base64", **notes}
    return {name: text, **notes}


def _text(data: bytes, *, cut: bool) -> str | None:
    """The bytes as text that both databases can store; None if they are none. A cut may go through a character."""
    if b"\0" in data:
        return None
    for shorter in range(4 if cut else 1):
        try:
            return data[: len(data) - shorter].decode()
        except UnicodeDecodeError:
            continue
    return None


def fitted(update: Mapping[str, Any], room: int = LARGEST_UPDATE) -> dict[str, Any]:
    """A report that fits into one request: the streams of the last tasks are shortened first, and say so."""
    results = [dict(each) for each in update["task_results"]]
    fitting = {**update, "task_results": results}
    excess = _size(fitting) - room
    for result in reversed(results):
        for name in ("stderr", "stdout"):
            if excess <= 0:
                return fitting
            before = _size(result)
            _shorten(result, name, before - excess)
            excess -= before - _size(result)
    return fitting


def _shorten(result: dict[str, Any], name: str, room: int) -> None:
    """Halve a stream until its result fits, or nothing of it is left."""
    result[f"{name}_truncated"] = True
    while result[name] and _size(result) > room:
        half = len(result[name]) // 2
        result[name] = result[name][: half - half % 4]  # base64 comes in fours


def _size(value: object) -> int:
    return len(json.dumps(value))
