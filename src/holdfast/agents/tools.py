"""Tools: typed functions that a model may call. What the model is shown comes from the annotations and the docstring.

A call is a job like any other: it is retried by its policy, limited in time, and fenced. What it returns or raises
becomes what the model reads; a tool that fails never fails its run.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from holdfast.agents.content import content_of
from holdfast.agents.definition import TOOL_KIND, Effect, ToolSpec
from holdfast.errors import NotUnderstood, UsageError
from holdfast.events import CallView
from holdfast.kernel import codec
from holdfast.models.schemas import check_schema
from holdfast.settings import Settings
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition
from holdfast.workers.signatures import Signature

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NAME = re.compile("[A-Za-z0-9_-]{1,128}")
ApprovalFunction = Callable[[CallView], bool | Awaitable[bool]]  # what `approve=` takes
Otherwise = Literal["deny", "approve"]
Unknown = Literal["review", "report"]


class ToolContext:
    """Given to a tool whose first parameter is annotated `ToolContext`. The model never sees it."""

    def __init__(self, job: JobContext) -> None:
        self.job = job
        about = (codec.decode(job.lease.metadata) or {}).get("call", {})
        if not isinstance(about, Mapping) or not isinstance(about.get("variables", {}), Mapping):
            raise NotUnderstood(f"the call of job {job.id}", f"it is {codec.clip(repr(about), 60)}")
        self._call: Mapping[str, Any] = about

    @property
    def call_id(self) -> str:
        return str(self._call.get("id") or self.job.id)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this call, including one that a person starts again.

        Pass it on to a system that deduplicates.
        """
        return self.call_id

    @property
    def tool_use_id(self) -> str:
        return str(self._call.get("tool_use_id", ""))

    @property
    def run_id(self) -> str:
        return str(self._call.get("run", ""))

    @property
    def root_run_id(self) -> str:
        return str(self._call.get("root", ""))

    @property
    def session_id(self) -> str:
        return str(self._call.get("session", ""))

    @property
    def agent(self) -> str:
        return str(self._call.get("agent", ""))

    @property
    def tenant(self) -> str:
        return self.job.tenant

    @property
    def turn(self) -> int:
        return int(self._call.get("turn", 0))

    @property
    def depth(self) -> int:
        return int(self._call.get("depth", 0))

    @property
    def attempt(self) -> int:
        return self.job.attempt

    @property
    def cancelled(self) -> bool:
        """True once the call should stop: it timed out, its run was cancelled, or the worker stops."""
        return self.job.cancelled

    @property
    def variables(self) -> Mapping[str, Any]:
        """The values you gave the run for its tools, and for the tools of every run below it."""
        return cast(Mapping[str, Any], self._call.get("variables", {}))

    def variable(self, name: str, kind: type[T], default: T | None = None) -> T:
        """One variable, checked: `ctx.variable("customer", int)`."""
        from pydantic import TypeAdapter, ValidationError

        if name not in self.variables:
            if default is not None:
                return default
            raise UsageError(f"the run has no variable {name!r}; it has {', '.join(sorted(self.variables)) or 'none'}.")
        try:
            return TypeAdapter(kind).validate_python(self.variables[name])
        except ValidationError as problem:
            raise UsageError(
                f"the run's variable {name!r} is not a valid {kind.__name__}: {problem.errors()[0]['msg']}."
            ) from None

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger of this tool, whose records name the run, the call and the attempt."""
        fields = {"run": self.run_id, "call": self.call_id, "session": self.session_id, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"holdfast.{self.job.kind.replace(':', '.')}"), fields)

    async def progress(self, value: Any) -> None:
        await self.job.progress(value)


class ToolSignature(Signature):
    """A tool's arguments as its schema, and its result as the content of a block."""

    def __init__(self, kind: str, function: Callable[..., Any], cap: int) -> None:
        super().__init__(kind, function, context="ToolContext")
        self._output_cap = cap

    def schema(self) -> dict[str, Any]:
        """What the model reads about the arguments."""
        return argument_schema(self._model.model_json_schema(by_alias=True))

    def untyped(self) -> list[str]:
        """The arguments of which the model sees only the name."""
        return [each.name for each in self._parameters if each.annotation is inspect.Parameter.empty]

    def _refusal(self, why: str) -> str:
        """The model reads this."""
        return f"the arguments of tool {self._kind.removeprefix(TOOL_KIND)!r} do not fit: {why}"

    def encode_result(self, value: Any) -> Any:
        return content_of(value, self._output_cap)


def shown_cap(settings: Settings) -> int:
    """How many bytes the result of a tool may have. A model reads it, so it may hold images and documents."""
    return settings.prompt_cap


def argument_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """pydantic's schema without the titles it makes up."""
    cleaned = cast(dict[str, Any], untitled(schema))
    cleaned.setdefault("properties", {})
    return cleaned


def untitled(node: Any, *, named: bool = False) -> Any:
    """`named`: the keys here are names that somebody chose, "title" may be one of them."""
    if isinstance(node, dict):
        return {
            key: untitled(value, named=key in ("properties", "$defs") and not named)
            for key, value in node.items()
            if named or key != "title" or not isinstance(value, str)
        }
    return [untitled(item) for item in node] if isinstance(node, list) else node


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """What a person has to do with a tool."""

    approve: bool | ApprovalFunction = False
    asks: bool = False  # it is answered by a person, and never run
    within_us: int | None = None
    otherwise: str | None = None
    review: bool = False


class Tool(Generic[P, R]):
    """A function that a model may call. Calling it yourself is a plain call."""

    def __init__(
        self,
        definition: Definition,
        function: Callable[P, R],
        *,
        name: str,
        effect: Effect,
        strict: bool,
        defer: bool = False,
        person: Person | None = None,
    ) -> None:
        self.definition = definition
        self.name = name
        self.effect = effect
        self._strict = strict
        self.defer = defer
        self.person = person or Person()
        self._function = function
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, effect={self.effect!r})"

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.__doc__ or "")

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as a version of an agent stores it."""
        definition = self.definition
        signature = definition.signature
        assert isinstance(signature, ToolSignature)
        schema = signature.schema()
        if self._strict:
            check_schema(schema, f"strict tool {self.name!r}")
        return ToolSpec(
            name=self.name,
            description=self.description,
            schema=schema,
            effect=self.effect,
            queue=definition.queue,
            requires=tuple(sorted(definition.requires)),
            timeout_us=definition.timeout_us,
            attempts=1 if self.effect == "once" else definition.retry.attempts or 2,
            priority=definition.priority,
            strict=self._strict,
            defer=self.defer,
            lane=definition.limits.lane if definition.limits else None,
            concurrency=definition.limits.concurrency if definition.limits else None,
            approve=bool(self.person.approve),
            person=self.person.asks,
            within_us=self.person.within_us,
            otherwise=self.person.otherwise,
            review=self.person.review,
        )


def tool_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid tool name: use letters, digits, _ and -, at most 128 of them.")
    return name


class ServerTool:
    """A tool that the provider runs itself: `ServerTool("web_search_20260318", max_uses=5)`."""

    def __init__(self, type: str, *, name: str = "", **options: Any) -> None:
        self.type = type
        self.name = name or type.rsplit("_", 1)[0]
        self.options = options

    def wire(self) -> dict[str, Any]:
        return {"type": self.type, "name": self.name, **self.options}


def callable_of(given: Any) -> tuple[Callable[..., Any], str, str | None]:
    """What is called, what it is called, and what it says of itself."""
    if inspect.isclass(given):
        given = given()
    if inspect.isroutine(given) or not hasattr(given, "run"):
        if not callable(given):
            raise UsageError(f"a tool is a function, or a class with a method run; not {given!r}.")
        return given, getattr(given, "__name__", type(given).__name__), given.__doc__
    name = getattr(given, "name", None) or type(given).__name__.lower()
    doc = getattr(given, "description", None) or type(given).__doc__ or given.run.__doc__
    return given.run, name, doc
