"""The page about the Python interface: what can be imported, called and raised, from signatures and docstrings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, get_overloads

import holdfast
from holdfast import errors, events, http, models, outcomes, testing
from holdfast.agents.collections import AgentsList, BatchesList, RunsList, SessionsList, Tenant
from holdfast.agents.compaction.compacting import CompactionStats
from holdfast.agents.money.face import Budget, BudgetsList, Used
from holdfast.agents.people.face import InquiriesList, Inquiry
from holdfast.events import CallView
from holdfast.handles import Jobs, Queues, Schedules, Workers
from holdfast.jobs import Job, JobFunction, Options
from holdfast.kernel.queues import QueueStats
from holdfast.kernel.records import AttemptRow, DutyRow, JobRow, WorkerRow
from holdfast.kernel.records_flow import LaneRow, QueueRow, ScheduleRow
from holdfast.kernel.sightings import Change
from holdfast.kernel.why import Reason
from holdfast.results import Usage
from holdfast.workers.context import Child
from holdfast.workers.role import Role

# Public for the other layers, not for programs.
INNER = {
    "Holdfast": {
        "book",
        "bound_to",
        "call",
        "ensure_worker",
        "followed",
        "intake",
        "make_worker",
        "require_key",
        "runtime",
        "streams",
        "tool_named",
    },
    "JobFunction": {"new_job"},
    "Agent": {"named", "spec", "delegate"},
    "Run": {"clock"},
    "Tool": {"spec", "definition"},
    "ToolContext": {"job"},
    "Queue": {"keep_us"},
    "RetryPolicy": {"delay_us"},
    "Lab": {"open", "close", "abandon", "accepted", "awaited"},
    "LabClock": {"followed_by", "monotonic", "wall_us", "sleep"},
    "Labs": {"notes", "open_lab", "close_lab", "close"},
}
WIDTH = 100

APP: list[tuple[str, Any]] = [
    ("Holdfast", holdfast.Holdfast),
    ("hf.jobs", Jobs),
    ("hf.queues", Queues),
    ("hf.schedules", Schedules),
    ("hf.workers", Workers),
    ("holdfast.workers.role.Role", Role),
]
JOBS: list[tuple[str, Any]] = [
    ("JobFunction", JobFunction),
    ("Job", Job),
    ("JobContext", holdfast.JobContext),
    ("Child", Child),
]
AGENTS: list[tuple[str, Any]] = [
    ("Agent", holdfast.Agent),
    ("Run", holdfast.Run),
    ("Result", holdfast.Result),
    ("holdfast.results.Usage", Usage),
    ("Session", holdfast.Session),
    ("Turn", holdfast.Turn),
    ("Tool", holdfast.Tool),
    ("ToolContext", holdfast.ToolContext),
    ("ServerTool", holdfast.ServerTool),
    ("Image", holdfast.Image),
    ("Document", holdfast.Document),
    ("Limits", holdfast.Limits),
    ("Compaction", holdfast.Compaction),
    ("holdfast.agents.compaction.compacting.CompactionStats", CompactionStats),
    ("hf.agents", AgentsList),
    ("hf.sessions", SessionsList),
    ("hf.runs", RunsList),
    ("hf.tenant(id)", Tenant),
    ("hf.inquiries", InquiriesList),
    ("holdfast.agents.people.face.Inquiry", Inquiry),
    ("holdfast.events.CallView", CallView),
    ("hf.budgets", BudgetsList),
    ("holdfast.agents.money.face.Budget", Budget),
    ("holdfast.agents.money.face.Used", Used),
    ("hf.batches", BatchesList),
]
EVENTS: list[tuple[str, Any]] = [("Event", holdfast.Event)] + [
    (f"holdfast.events.{kind.__name__}", kind) for kind in events.TYPES
]
HTTP: list[tuple[str, Any]] = [("holdfast.http.sse", http.sse)]
MODELS: list[tuple[str, Any]] = [
    (f"holdfast.models.{name}", getattr(models, name))
    for name in (
        *("Model", "Request", "Answered", "ModelFailure", "ScriptedModel", "Script"),
        *("say", "call", "calls", "think", "refuse", "truncate", "block", "ends"),
        *("Facts", "facts_for", "Price", "cost"),
    )
]
POLICY: list[tuple[str, Any]] = [("Queue", holdfast.Queue), ("Retry", holdfast.Retry)]
ENDINGS: list[tuple[str, Any]] = [
    (name, getattr(outcomes, name)) for name in ("Cancel", "Discard", "Snooze", "Done", "Retry", "Fail", "Park")
]
ROWS: list[Any] = [JobRow, AttemptRow, Reason, QueueRow, QueueStats, LaneRow, ScheduleRow, WorkerRow, Change, DutyRow]
TESTING: list[tuple[str, Any]] = [
    (name, getattr(testing, name)) for name in testing.__all__ if not hasattr(models, name)
]


def api() -> str:
    described = (
        {name for name, _ in [*APP, *JOBS, *AGENTS, *EVENTS, *POLICY, *ENDINGS]} | {"Settings"} | set(vars(errors))
    )
    assert described >= set(holdfast.__all__), f"no chapter has {set(holdfast.__all__) - described}"
    names = textwrap.fill("`from holdfast import …`: " + ", ".join(f"`{name}`" for name in holdfast.__all__) + ".", 120)
    parts = [
        "# Python interface",
        "",
        names,
        "",
        'A `Duration` is text such as `"500ms"`, `"10s"`, `"1h30m"`, `"7d"`, or a `timedelta`.',
        "",
    ]
    parts += _chapter("The app", APP)
    parts += ["### Settings", "", "Every setting is a keyword of `Settings(...)`: [settings](settings.md).", ""]
    parts += _chapter("Jobs", JOBS)
    parts += _options()
    parts += _rows()
    parts += _chapter("Agents", AGENTS)
    parts += _chapter("Events of runs", EVENTS, "In `holdfast.events`; the guide is [events](../events.md).")
    parts += _chapter("HTTP", HTTP, "In `holdfast.http`.")
    parts += _chapter("Models", MODELS, "In `holdfast.models`; the guide is [models](../models.md).")
    parts += _chapter("Policies", POLICY)
    parts += _chapter("Outcomes", ENDINGS, "In `holdfast.outcomes`; the first three are exported by `holdfast`.")
    parts += _errors()
    parts += _chapter(
        "Tests", TESTING, "In `holdfast.testing`, with the steps of scripts; the guide is [testing](../testing.md)."
    )
    return "\n".join(parts)


def _chapter(title: str, things: list[tuple[str, Any]], note: str = "") -> Iterator[str]:
    yield from (f"## {title}", "")
    if note:
        yield from (note, "")
    for name, thing in things:
        yield from _function(name, thing, "###") if inspect.isfunction(thing) else _class(name, thing)


def _class(name: str, kind: type[Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if inspect.isfunction(kind.__init__) and not name.startswith("hf.") and kind.__name__ not in _MADE_BY_US:
        yield from ("```text", signature(name.rpartition(".")[2], kind.__init__), "```", "")
    yield from _words(kind.__doc__)
    for member, thing in _members(kind).items():
        if member.startswith("_") or member in INNER.get(kind.__name__, ()):
            continue
        shown = f"{name}.{member}"
        if isinstance(thing, property | cached_property):
            getter = thing.fget if isinstance(thing, property) else thing.func
            yield from (f"#### {shown}", "", f"`{shown}: {_returned(getter)}`", "", *_words(getter.__doc__))
        elif isinstance(thing, classmethod | staticmethod):
            yield from _function(shown, thing.__func__, "####")
        elif inspect.isfunction(thing):
            yield from _function(shown, thing, "####")


def _members(kind: type[Any]) -> dict[str, Any]:
    """What it has, and what it has from classes of ours that it is made of."""
    found: dict[str, Any] = {}
    for each in kind.__mro__:
        if each.__module__.startswith("holdfast"):
            found |= {name: thing for name, thing in vars(each).items() if name not in found}
    return found


# Nobody but the library constructs these.
_MADE_BY_US = {"JobFunction", "Job", "JobContext", "Lab", "Labs", "LabClock", "Crash", "Model"}


def _function(name: str, function: Any, level: str) -> Iterator[str]:
    calls = get_overloads(function)
    best = calls[-1] if calls else function
    yield from (f"{level} {name}", "", "```text", signature(name, best), "```", "", *_words(function.__doc__))


def _options() -> Iterator[str]:
    yield from ("### Options", "", "What `JobFunction.options(...)` takes.", "", "| option | default |", "|---|---|")
    yield from (f"| `{field.name}: {_escaped(field.type)}` | `{field.default!r}` |" for field in fields(Options))
    yield ""


def _rows() -> Iterator[str]:
    yield from ("### Rows", "", "What is read from the store: plain records. Times are")
    yield from (
        "microseconds since 1970, UTC; `payload`, `metadata`, `progress`, `result` and `error` are JSON text.",
        "",
    )
    yield from ("| row | fields |", "|---|---|")
    yield from (f"| `{row.__name__}` | {', '.join(f'`{name}`' for name in _fields(row))} |" for row in ROWS)
    yield ""


def _fields(row: Any) -> Iterable[str]:
    return [field.name for field in fields(row)] if is_dataclass(row) else row._fields


def _errors() -> Iterator[str]:
    yield from ("## Errors", "", "In `holdfast.errors`; [errors](../errors.md) says what to do with them.", "")
    yield from ("| error | is a | `retry` | meaning |", "|---|---|---|---|")
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.HoldfastError):
            yield f"| `{name}` | `{kind.__bases__[0].__name__}` | {kind.retry} | {(kind.__doc__ or '').strip()} |"
    yield ""


def signature(name: str, function: Any) -> str:
    """A call as one would write it down; annotations as they stand in the source, so the same for every Python."""
    found = inspect.signature(function)
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    words = list(_parameters(parameters))
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    if function is not inspect.unwrap(function) and inspect.isasyncgenfunction(inspect.unwrap(function)):
        prefix = "async with "
    returned = (
        "" if found.return_annotation in (inspect.Signature.empty, "None", None) else f" -> {_returned(function)}"
    )
    line = f"{prefix}{name}({', '.join(words)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{prefix}{name}(", *(f"    {word}," for word in words), f"){returned}"])


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for before, p in zip([None, *parameters], parameters, strict=False):
        if before is not None and before.kind is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            yield "/"
        if p.kind is p.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY)
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        annotation = "" if p.annotation is p.empty else f": {_written(p.annotation)}"
        yield f"{stars}{p.name}{annotation}{'' if p.default is p.empty else _default(p.default)}"
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _default(value: Any) -> str:
    text = repr(value)
    assert " at 0x" not in text, text
    return f" = {text.replace(chr(39), chr(34)) if isinstance(value, str) else text}"


def _returned(function: Any) -> str:
    return _written(inspect.signature(function).return_annotation)


def _written(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))


def _escaped(annotation: Any) -> str:
    return _written(annotation).replace("|", "\\|")


def _words(doc: str | None) -> Iterator[str]:
    if doc:
        yield from (inspect.cleandoc(doc), "")
