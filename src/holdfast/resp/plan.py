"""Plans: templates of Unix commands, checked once and never changed. Pure.

A task's number is its place, and it reads only what an earlier task wrote. So a plan is a line, never a circle. Other
fields of a plan are kept and change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.errors import UsageError

PLAN_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_TASKS, MOST_ARGS, LONGEST_ARG = 100, 100, 65_536
LONGEST_DESCRIPTION, LONGEST_COMMAND = 1_024, 256
DEFAULT_TIMEOUT, LONGEST_TIMEOUT = 300, 3_600
_PLACEHOLDER = re.compile(r"\{\{\s*input\.([A-Za-z0-9_-]+)\s*\}\}")
_LETTERS = re.compile(
    r"-[\w@#?:%+!-]*"
)  # a hyphen and what may be options: the next letter may be one more, or its value
_OF_PLAN = {"plan_id", "plan_description", "tasks"}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_OF_TASK = {"task_number", "command", "args", "timeout_secs", "input_from_task", "options_from_input"}


class BadPlan(UsageError):
    """The plan is not one; the message says what is wrong, and where."""


class BadInput(UsageError):
    """The input lacks a field that the plan names, or has one that is not a plain value."""


class UnixTask(NamedTuple):
    number: int
    command: str
    args: tuple[str, ...]
    timeout: int  # seconds
    input_from: int | None  # the task whose output it reads
    options_from_input: bool = False  # whether a field of the input may be an option, as -n

    def arguments(self, input: object) -> list[str]:
        """Its arguments with the fields of the input put in. What comes of it is checked: the final text counts."""
        made = [_PLACEHOLDER.sub(lambda found: _field(input, found[1]), arg) for arg in self.args]
        for arg, each in zip(self.args, made, strict=True):
            _check_argument(each, f"task {self.number}", BadInput)
            if each.startswith("-") and not arg.startswith("-") and not self.options_from_input:
                raise BadInput(
                    f"the input would make {each[:40]!r} an option of {self.command!r} in task {self.number}: write "
                    f"options_from_input: true there if that is meant"
                )
        return made


class UnixPlan(NamedTuple):
    id: str
    description: str
    tasks: tuple[UnixTask, ...]
    others: Mapping[str, Any] = _NOTHING  # fields of the plan that say nothing about what runs

    @property
    def commands(self) -> tuple[str, ...]:
        """The tools that a worker needs for it."""
        return tuple(sorted({task.command for task in self.tasks}))

    def as_json(self) -> dict[str, Any]:
        """What runs, with every default written out."""
        tasks: list[dict[str, Any]] = [
            {
                "task_number": task.number,
                "command": task.command,
                "args": list(task.args),
                "timeout_secs": task.timeout,
                **({} if task.input_from is None else {"input_from_task": task.input_from}),
                **({"options_from_input": True} if task.options_from_input else {}),
            }
            for task in self.tasks
        ]
        return {"plan_id": self.id, "plan_description": self.description, "tasks": tasks}

    def as_submitted(self) -> dict[str, Any]:
        """The plan as it is stored and shown."""
        return {**self.others, **self.as_json()}


def read_plan(value: object) -> UnixPlan:
    """The plan that this JSON is; `BadPlan` says what is wrong with it."""
    body = _object(value, "a plan", None)
    id = body.get("plan_id")
    if not isinstance(id, str) or not PLAN_ID.fullmatch(id):
        raise BadPlan("plan_id has 1 to 64 letters, digits, dots, hyphens and underscores")
    description = body.get("plan_description", "")
    if not isinstance(description, str) or len(description) > LONGEST_DESCRIPTION:
        raise BadPlan(f"plan_description is text of at most {LONGEST_DESCRIPTION} characters")
    tasks = body.get("tasks")
    if not isinstance(tasks, list) or not 1 <= len(tasks) <= MOST_TASKS:
        raise BadPlan(f"tasks is a list of 1 to {MOST_TASKS} tasks")
    others = {name: said for name, said in body.items() if name not in _OF_PLAN}
    return UnixPlan(id, description, tuple(_task(each, number) for number, each in enumerate(tasks, 1)), others)


def _task(value: object, number: int) -> UnixTask:
    body = _object(value, f"task {number}", _OF_TASK)
    if body.get("task_number") != number or isinstance(body.get("task_number"), bool):
        raise BadPlan(f"task_number must count from 1 without gaps: {number} is missing")
    command = body.get("command")
    if not isinstance(command, str) or not 1 <= len(command) <= LONGEST_COMMAND:
        raise BadPlan(f"command of task {number} is text of 1 to {LONGEST_COMMAND} characters")
    if "/" in command or not command.isprintable() or command in (".", ".."):
        raise BadPlan(f"command of task {number} is the name of a tool, not a path")
    timeout = _whole(body.get("timeout_secs", DEFAULT_TIMEOUT), f"timeout_secs of task {number}", LONGEST_TIMEOUT)
    source = body.get("input_from_task")
    if source is not None:
        source = _whole(source, f"input_from_task of task {number}", MOST_TASKS)
        if source >= number:
            raise BadPlan(f"input_from_task of task {number} must name an earlier task, not {source}")
    options = body.get("options_from_input", False)
    if not isinstance(options, bool):
        raise BadPlan(f"options_from_input of task {number} must be true or false")
    args = _args(body.get("args", []), number)
    if not options:
        _check_options(args, command, number)
    return UnixTask(number, command, args, timeout, source, options)


def _check_options(args: tuple[str, ...], command: str, number: int) -> None:
    """Refuse a field of the input where a tool reads letters of options: `o/etc/x` is one of `sort`."""
    for each in args:
        if (field := _PLACEHOLDER.search(each)) and _LETTERS.fullmatch(each, 0, field.start()):
            raise BadPlan(
                f"{each[:40]!r} in task {number} lets the input choose options of {command!r}: give the field an "
                f"argument of its own, write --option={{{{input.field}}}}, or options_from_input: true if that is meant"
            )


def _args(value: object, number: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_ARGS or not all(isinstance(each, str) for each in value):
        raise BadPlan(f"args of task {number} is a list of at most {MOST_ARGS} texts")
    for each in value:
        _check_argument(each, f"task {number}", BadPlan)
        for part in each.split("{{")[1:]:
            inner, end, _ = part.partition("}}")
            if end and inner.strip().startswith("input") and not _PLACEHOLDER.fullmatch(f"{{{{{inner}}}}}"):
                told = f"{{{{{inner}}}}}"[:40]
                raise BadPlan(f"{told} in task {number} does not name a field: write {{{{input.field}}}}")
    return tuple(value)


def _check_argument(text: str, where: str, kind: type[UsageError]) -> None:
    if "\x00" in text:
        raise kind(f"an argument of {where} contains a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise kind(f"an argument of {where} is not text") from None
    if size > LONGEST_ARG:
        raise kind(f"an argument of {where} has {size} bytes, more than {LONGEST_ARG}")


def _field(input: object, name: str) -> str:
    if not isinstance(input, Mapping) or name not in input:
        raise BadInput(f"the input has no field {name!r}")
    value = input[name]
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            raise BadInput(f"field {name!r} of the input is neither text nor a number")


def _object(value: object, what: str, known: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadPlan(f"{what} is a JSON object")
    if known is not None and (unknown := sorted(set(value) - known)):
        raise BadPlan(f"{what} has an unknown field {unknown[0][:40]!r}")
    return value


def _whole(value: object, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise BadPlan(f"{what} is a whole number of 1 to {most}")
    return value
