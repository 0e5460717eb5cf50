"""Steps: what a scripted model says, as values, and as they are written in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.models.protocol import Wire
from holdfast.models.request_view import RequestView, ReturnedResult, clip
from holdfast.text import plural


@dataclass(frozen=True, slots=True)
class Think:
    text: str


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Raw:
    body: Wire


Inside = Think | Say | Call | Raw


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One whole answer: its parts in order, why it stops, and what it used; without `usage`, something plausible."""

    parts: tuple[Inside, ...]
    stop_reason: str = "end_turn"
    category: str | None = None
    usage: Wire | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """No answer: the provider does not take the request, and says why."""

    message: str


Part = Inside | ScriptedTurn | Reject


class Rejected(UsageError):
    """A script does not take a request, as a provider answers with status 400."""


def say(text: str) -> Say:
    """Answer with a text."""
    return Say(text)


def call(name: str, /, **input: Any) -> Call:
    """Ask for a tool call."""
    return Call(name, input)


def calls(*parts: Inside) -> ScriptedTurn:
    """Several tool calls in one turn; texts may stand before them."""
    return ScriptedTurn(parts, stop_of(parts))


def block(type: str, /, **body: Any) -> Raw:
    """A block as the provider writes it: a server tool's use or result, or one of an unknown type."""
    return Raw({"type": type, **body})


def ends(stop_reason: str, *parts: Inside) -> ScriptedTurn:
    """A turn that stops for this reason: `pause_turn`, `model_context_window_exceeded` …"""
    return ScriptedTurn(parts, stop_reason)


def think(text: str) -> Think:
    """Think before the next step, in the same turn."""
    return Think(text)


def refuse(category: str | None = None) -> ScriptedTurn:
    """Decline: an answer like any other to HTTP, with `stop_reason: refusal`."""
    return ScriptedTurn((), "refusal", category)


def reject(message: str) -> Reject:
    """Do not take the request: status 400 with this message, and nothing is bought. `refuse()` is an answer, not this.

    For example, a function of the messages may do so if one of them has a picture.
    """
    return Reject(message)


def truncate(text: str) -> ScriptedTurn:
    """Be cut off by max_tokens after this text."""
    return ScriptedTurn((Say(text),), "max_tokens")


_WITH_TEXT: Mapping[str, Callable[[Any], Part]] = {"refuse": refuse, "reject": reject, "truncate": truncate}


def whole(part: Part) -> ScriptedTurn:
    """A part as the turn that it makes alone; `Rejected` when it is none."""
    if isinstance(part, Reject):
        raise Rejected(part.message)
    return part if isinstance(part, ScriptedTurn) else ScriptedTurn((part,), stop_of((part,)))


def stop_of(parts: Sequence[Part]) -> str:
    return "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"


def read_step(step: dict[str, Any]) -> Part:
    """One step as it is written in JSON; `ValueError` when it is none."""
    ((verb, value),) = step.items()
    match verb:
        case "say":
            return Say(value)
        case "think":
            return Think(value)
        case "call":
            name, *given = value
            return Call(name, given[0] if given else {})
        case "calls":
            return calls(*map(read_inside, value))
        case "block":
            return Raw(value)
        case "ends":
            reason, *parts = value
            return ends(reason, *map(read_inside, parts))
        case "refuse" | "reject" | "truncate":
            return _WITH_TEXT[verb](value)
        case _:
            raise ValueError(f"there is no step {verb!r}")


def read_inside(step: dict[str, Any]) -> Inside:
    part = read_step(step)
    if isinstance(part, ScriptedTurn | Reject):
        raise ValueError(f"{step} is a separate turn")
    return part


def write_inside(part: Inside) -> dict[str, Any]:
    """What `read_inside` reads."""
    match part:
        case Think(text):
            return {"think": text}
        case Say(text):
            return {"say": text}
        case Call(name, given):
            return {"call": [name, given]}
        case Raw(body):
            return {"block": body}


# Expectations: steps of a script that also check what the model is asked.
#
# A request that does not fit is refused as a provider refuses a bad one, so nothing is bought; a lab fails its test.


Pattern = str | re.Pattern[str]
"""A text that must be in it, or a regular expression that must be found in it."""


class Unexpected(UsageError):
    """A script was asked something else than it expects; the message says what, and what it was asked."""


@dataclass(frozen=True, slots=True)
class ExpectedStep:
    """A step that is played if the request fits, and fails the test if it does not."""

    expectation: Expectation
    step: Part | Callable[[list[Wire]], Part]

    def played(self, body: Wire) -> Part:
        self.expectation.check(RequestView(body))
        return self.step(list(body["messages"])) if callable(self.step) else self.step


class ExpectationMisfit(NamedTuple):
    expected: str
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a model is expected to be asked. `say`, `call` or `then` says what it answers."""

    text: Pattern | None = None
    result: Pattern | None = None
    tool: str | None = None
    is_error: bool | None = None
    tools: str | Collection[str] | None = None
    system: Pattern | None = None
    model: Pattern | None = None
    messages: int | None = None
    fits: Callable[[Wire], object] | None = None

    def say(self, text: str) -> ExpectedStep:
        return ExpectedStep(self, Say(text))

    def call(self, name: str, /, **input: Any) -> ExpectedStep:
        return ExpectedStep(self, Call(name, input))

    def then(self, step: Part | Callable[[list[Wire]], Part]) -> ExpectedStep:
        """Answer with any other step: `calls(...)`, `refuse()`, a function of the messages …"""
        return ExpectedStep(self, step)

    def check(self, heard: RequestView) -> None:
        """`Unexpected`, with everything that does not fit."""
        if misfits := self._misfits(heard):
            raise Unexpected("\n".join([_lines(misfits), "What it was sent:", heard.told()]))

    def _misfits(self, heard: RequestView) -> list[ExpectationMisfit]:
        found = [
            ExpectationMisfit(f"{name} {_shown(wanted)}", f"{name} {clip(asked)!r}")
            for name, wanted, asked in (
                ("text", self.text, heard.text),
                ("system", self.system, heard.system),
                ("model", self.model, heard.model),
            )
            if wanted is not None and not _is_in(wanted, asked)
        ]
        if self.messages is not None and self.messages != len(heard.messages):
            found.append(ExpectationMisfit(plural(self.messages, "message"), plural(len(heard.messages), "message")))
        return [*found, *self._about_tools(heard.tools), *self._about_results(heard.results), *self._about_body(heard)]

    def _about_tools(self, offered: list[str]) -> list[ExpectationMisfit]:
        if self.tools is None:
            return []
        if isinstance(self.tools, str):
            wanted, fits = f"{self.tools} among the tools", self.tools in offered
        else:
            wanted, fits = f"the tools {_named(self.tools)}", set(self.tools) == set(offered)
        return [] if fits else [ExpectationMisfit(wanted, f"the tools {_named(offered)}")]

    def _about_results(self, results: list[ReturnedResult]) -> list[ExpectationMisfit]:
        if self.result is None and self.tool is None and self.is_error is None:
            return []
        if any(self._is_it(result) for result in results):
            return []
        what = {None: "a result", True: "an error", False: "a success"}[self.is_error]
        of = "" if self.tool is None else f" of {self.tool}"
        words = "" if self.result is None else f" {_shown(self.result)}"
        return [ExpectationMisfit(f"{what}{of}{words}", ", ".join(map(str, results)) or "no results")]

    def _is_it(self, result: ReturnedResult) -> bool:
        return (
            self.tool in (None, result.tool)
            and self.is_error in (None, result.is_error)
            and (self.result is None or _is_in(self.result, result.text))
        )

    def _about_body(self, heard: RequestView) -> list[ExpectationMisfit]:
        if self.fits is None:
            return []
        name = getattr(self.fits, "__name__", "a function")
        try:
            answer = self.fits(heard.body)
        except AssertionError as problem:
            return [ExpectationMisfit(f"what {name} asserts", str(problem) or "something else")]
        return [] if answer else [ExpectationMisfit(f"what {name} says yes to", "something that it says no to")]


def expect(  # noqa: PLR0913  the language
    fits: Callable[[Wire], object] | None = None,
    /,
    *,
    text: Pattern | None = None,
    result: Pattern | None = None,
    tool: str | None = None,
    is_error: bool | None = None,
    tools: str | Collection[str] | None = None,
    system: Pattern | None = None,
    model: Pattern | None = None,
    messages: int | None = None,
) -> Expectation:
    """What a model is to be asked at this step of a script: `expect(text="A1").call("find_order", number="A1")`.

    A text is one that must be in it; `re.compile(...)` is searched for. `text` is what the user said last. `result`,
    `tool` and `is_error` are of one result of the last calls. `tools` are exactly those offered, or one of them.
    `fits` is given the body of the request: it returns whether it fits, or asserts.
    """
    expectation = Expectation(
        text=text,
        result=result,
        tool=tool,
        is_error=is_error,
        tools=tools,
        system=system,
        model=model,
        messages=messages,
        fits=fits,
    )
    if expectation == Expectation():
        raise UsageError('expect() has nothing to check: add an argument, such as expect(text="A1").')
    return expectation


def _is_in(wanted: Pattern, text: str) -> bool:
    return wanted in text if isinstance(wanted, str) else wanted.search(text) is not None


def _shown(wanted: Pattern) -> str:
    return f"with {wanted!r} in it" if isinstance(wanted, str) else f"that matches {wanted.pattern!r}"


def _named(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"


def _lines(misfits: list[ExpectationMisfit]) -> str:
    return "\n".join(
        line for misfit in misfits for line in (f"- expected {misfit.expected}", f"+ asked    {misfit.asked}")
    )
