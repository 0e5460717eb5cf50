"""The page about the Python interface: what can be imported, called and raised, from signatures and docstrings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, get_overloads

import holdfast
from holdfast import errors, events, http, models, outcomes, pools, testing
from holdfast.access.principals import WebAccess
from holdfast.access.webhooks import WebhookOptions
from holdfast.agents.api.declarations import AGENT_DEFAULTS, AgentOptions
from holdfast.agents.api.lists import AgentsList, BatchesList, LanesList, RunsList, SessionsList, Tenant
from holdfast.agents.api.options import RUN_DEFAULTS, ManyRunOptions, RunOptions, TenantRunOptions
from holdfast.agents.api.session import SendOptions, SessionOptions, TenantSessionOptions
from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.mcp.tools import McpOptions
from holdfast.agents.money.api import Budget, BudgetsList, Used
from holdfast.agents.people.rulings import AppInquiries
from holdfast.agents.toolbox import TOOL_DEFAULTS, ToolOptions
from holdfast.agents.values import (
    AgentRecord,
    BatchRecord,
    CallRecord,
    ClosedLaneRecord,
    CompactionRecord,
    Inquiry,
    Message,
    RequestRecord,
    RunRecord,
    SessionRecord,
    VersionRecord,
)
from holdfast.brokers.broker import BrokerOptions
from holdfast.client.declarations import JOB_DEFAULTS, JobOptions, ScheduledJobOptions
from holdfast.client.handles import Jobs, Queues, Schedules, Workers
from holdfast.client.jobs import ENQUEUE_DEFAULTS, EnqueueOptions, Job, JobFunction
from holdfast.client.results import Usage
from holdfast.events import CallView
from holdfast.machines.api import ExecutionHandle, ExecutionOptions, Machine, MachineOptions
from holdfast.machines.hooks import MachineHooks
from holdfast.machines.problems import BadMachine
from holdfast.pools.stats import Pools, QueueDemand
from holdfast.resp.options import RespServing
from holdfast.sync import Sync
from holdfast.values import Page
from holdfast.values.jobs import AttemptRecord, JobChange, JobRecord, ReasonRecord, RetriedRecord
from holdfast.values.queues import LaneRecord, QueueCounts, QueueRecord, ScheduleRecord
from holdfast.values.workers import DutyRecord, LineSlots, LoopHeld, WorkerRecord
from holdfast.workers.context import Child, StartedChild
from holdfast.workers.role import Role

# Public for the other layers, not for programs.
INNER = {
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
MCP_DEFAULTS = McpOptions(
    command=(), env=None, cwd=None, url="", headers=None, prefix=None, only=None, effect=None, effects=None
)
# What each option is when nobody gives it.
DEFAULTS: dict[str, Mapping[str, Any]] = {
    "ScheduledJobOptions": JOB_DEFAULTS,
    "JobOptions": JOB_DEFAULTS,
    "ToolOptions": TOOL_DEFAULTS,
    "McpOptions": {**MCP_DEFAULTS, **TOOL_DEFAULTS, "effect": None},
    "AgentOptions": AGENT_DEFAULTS,
    "EnqueueOptions": ENQUEUE_DEFAULTS,
    **dict.fromkeys(("RunOptions", "ManyRunOptions", "SendOptions", "TenantRunOptions"), RUN_DEFAULTS),
    "SessionOptions": {"tenant": "", "parent": None, "metadata": None, "during": None},
    "TenantSessionOptions": {"parent": None, "metadata": None, "during": None},
    "MachineOptions": {"hooks": None, "machines": None, "queue": "default"},
    "ExecutionOptions": {"execution_id": None, "tenant": "", "priority": 100, "metadata": None},
    "BrokerOptions": {"name": "", "id": "", "queues": None, "capabilities": (), "slots": 20, "renewal": "auto"}
    | {"lease_ttl": None},
    "RespServing": {"workers": None, "tls_cert": None, "tls_key": None, "pop_form": "bulk"},
    "WebAccess": {
        "who": None,
        "tenant": None,
        "metadata": None,
        "read_only": False,
        "gateway": None,
        "hosts": None,
    },
    "WebhookOptions": {"tenant": "", "using": None},
}
OPTIONS = {
    kind.__name__: kind
    for kind in (
        *(ScheduledJobOptions, JobOptions, ToolOptions, McpOptions, AgentOptions),
        *(SessionOptions, TenantSessionOptions, EnqueueOptions),
        *(RunOptions, ManyRunOptions, SendOptions, TenantRunOptions),
        *(MachineOptions, ExecutionOptions, BrokerOptions, RespServing, WebAccess, WebhookOptions),
    )
}

APP: list[tuple[str, Any]] = [
    ("Holdfast", holdfast.Holdfast),
    ("hf.jobs", Jobs),
    ("hf.queues", Queues),
    ("hf.schedules", Schedules),
    ("hf.workers", Workers),
    ("hf.sync", Sync),
    ("holdfast.workers.role.Role", Role),
    ("holdfast.values.Page", Page),
]
JOBS: list[tuple[str, Any]] = [
    ("JobFunction", JobFunction),
    ("Job", Job),
    ("JobContext", holdfast.JobContext),
    ("StartedChild", StartedChild),
    ("Child", Child),
]
AGENTS: list[tuple[str, Any]] = [
    ("Agent", holdfast.Agent),
    ("Run", holdfast.Run),
    ("Result", holdfast.Result),
    ("holdfast.client.results.Usage", Usage),
    ("Session", holdfast.Session),
    ("Turn", holdfast.Turn),
    ("Tool", holdfast.Tool),
    ("ToolContext", holdfast.ToolContext),
    ("ServerTool", holdfast.ServerTool),
    ("Image", holdfast.Image),
    ("Document", holdfast.Document),
    ("Limits", holdfast.Limits),
    ("Compaction", holdfast.Compaction),
    ("holdfast.agents.compaction.compactor.CompactionStats", CompactionStats),
    ("hf.agents", AgentsList),
    ("hf.sessions", SessionsList),
    ("hf.runs", RunsList),
    ("hf.tenant(id)", Tenant),
    ("hf.inquiries", AppInquiries),
    ("holdfast.agents.values.Inquiry", Inquiry),
    ("holdfast.events.CallView", CallView),
    ("hf.budgets", BudgetsList),
    ("holdfast.agents.money.api.Budget", Budget),
    ("holdfast.agents.money.api.Used", Used),
    ("hf.batches", BatchesList),
    ("hf.lanes", LanesList),
]
MACHINES: list[tuple[str, Any]] = [
    ("Machine", Machine),
    ("Execution", ExecutionHandle),
    ("holdfast.machines.hooks.MachineHooks", MachineHooks),
    ("holdfast.machines.problems.BadMachine", BadMachine),
]
EVENTS: list[tuple[str, Any]] = [("Event", holdfast.Event)] + [
    (f"holdfast.events.{kind.__name__}", kind) for kind in events.TYPES
]
HTTP: list[tuple[str, Any]] = [("holdfast.http.sse", http.sse)]
MODELS: list[tuple[str, Any]] = [
    (f"holdfast.models.{name}", getattr(models, name))
    for name in (
        *("Model", "Request", "ResponseHead", "ModelFailure", "ScriptedModel", "Script"),
        *("say", "call", "calls", "think", "refuse", "truncate", "block", "ends"),
        *("Facts", "facts_for", "Price", "cost"),
    )
]
POOLS: list[tuple[str, Any]] = [
    *((f"holdfast.pools.{name}", getattr(pools, name)) for name in pools.__all__),
    ("hf.pools", Pools),
    ("holdfast.pools.stats.Demand", QueueDemand),
]
POLICY: list[tuple[str, Any]] = [("Queue", holdfast.Queue), ("Retry", holdfast.Retry)]
ENDINGS: list[tuple[str, Any]] = [
    (name, getattr(outcomes, name)) for name in ("Cancel", "Discard", "Snooze", "Done", "TryAgain", "Fail", "Park")
]
VALUES: list[Any] = [
    *(
        JobRecord,
        AttemptRecord,
        ReasonRecord,
        JobChange,
        RetriedRecord,
        QueueRecord,
        QueueCounts,
        LaneRecord,
        ScheduleRecord,
    ),
    *(WorkerRecord, LineSlots, LoopHeld, DutyRecord),
    *(RunRecord, CallRecord, SessionRecord, Message, CompactionRecord, AgentRecord, VersionRecord),
    *(BatchRecord, RequestRecord, ClosedLaneRecord),
]
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
        "All that a program imports, calls and reads, from the signatures and docstrings of the code.",
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
    parts += _values()
    parts += _chapter("Agents", AGENTS)
    parts += _chapter("Machines", MACHINES, "The guide is [machines](../machines.md).")
    parts += _chapter("Events of runs", EVENTS, "In `holdfast.events`; the guide is [events](../events.md).")
    parts += _chapter("Pools", POOLS, "In `holdfast.pools`; the guide is [pools](../pools.md).")
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
_MADE_BY_US = {
    "Machine",
    "ExecutionHandle",
    "BadMachine",
    "JobFunction",
    "Job",
    "JobContext",
    "StartedChild",
    "Lab",
    "Labs",
    "LabClock",
    "Crash",
    "Model",
}


def _function(name: str, function: Any, level: str) -> Iterator[str]:
    calls = [call for call in get_overloads(function) if not _decorates(call)] or [function]
    shown = [signature(name, call) for call in calls]
    yield from (f"{level} {name}", "", "```text", *shown, "```", "", *_words(function.__doc__))


def _decorates(call: Any) -> bool:
    """Whether this is how a decorator is called with the function itself."""
    parameters = inspect.signature(call).parameters
    return "function" in parameters and parameters["function"].kind is inspect.Parameter.POSITIONAL_ONLY


def _options() -> Iterator[str]:
    yield from ("### Options", "", "What `JobFunction.options(...)` takes.", "", "| option | default |", "|---|---|")
    declared = EnqueueOptions.__annotations__
    yield from (
        f"| `{name}: {_escaped(declared[name].__forward_arg__)}` | `{default!r}` |"
        for name, default in ENQUEUE_DEFAULTS.items()
    )
    yield ""


def _values() -> Iterator[str]:
    yield from (
        "### Values",
        "",
        "What you read from the store: frozen dataclasses, in `holdfast.values` and `holdfast.agents.values`.",
        "Times are datetimes in UTC, durations are timedeltas, and stored JSON is parsed.",
        "`holdfast.values.as_json(value)` is what `--json` prints of a value: times are ISO 8601 text, durations are",
        "text such as `1h30m`, decimals are text.",
        "",
    )
    yield from ("| value | fields |", "|---|---|")
    yield from (f"| `{value.__name__}` | {', '.join(f'`{name}`' for name in _fields(value))} |" for value in VALUES)
    yield ""


def _fields(value: Any) -> Iterable[str]:
    return [*(field.name for field in fields(value)), *getattr(value, "SHOWN", ())]


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
        if p.kind is p.VAR_KEYWORD and (kind := OPTIONS.get(str(p.annotation)[len("Unpack[") : -1])) is not None:
            yield from _listed(kind, starred=starred)
            continue
        annotation = "" if p.annotation is p.empty else f": {_written(p.annotation)}"
        yield f"{stars}{p.name}{annotation}{'' if p.default is p.empty else _default(p.default)}"
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _listed(kind: Any, *, starred: bool) -> Iterator[str]:
    """Options that a call takes by name, as if it listed them."""
    if not starred:
        yield "*"
    defaults = DEFAULTS[kind.__name__]
    own = [name for name in defaults if name in kind.__annotations__]
    yield from (f"{name}: {kind.__annotations__[name].__forward_arg__}{_default(defaults[name])}" for name in own)


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
