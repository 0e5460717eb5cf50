"""Results: how a run ended, and what it used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from holdfast.errors import RunFailed

T = TypeVar("T")

OutcomeName = Literal["answered", "refused", "truncated", "limited", "unfit"]
OUTPUT_ERROR = "output_error"
_SHOWN = 500  # characters of an answer that does not fit


class Usage(NamedTuple):
    """Tokens and money. `cost` is in USD."""

    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    turns: int = 0
    runs: int = 1

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000

    def as_json(self) -> dict[str, Any]:
        """The same in plain values."""
        return {**self._asdict(), "cost": str(self.cost)}

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_write_tokens + self.cache_read_tokens


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the provider declined; an answer, not an error."""

    category: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """How a completed run ended. Only "answered" has an `output`, so you never get an incomplete object.

    `usage` is what the run and every run below it have used; `turns` are its own.
    """

    run_id: str
    session_id: str
    outcome: OutcomeName
    text: str
    stop_reason: str | None
    usage: Usage
    refusal: Refusal | None
    limit: str | None
    turns: int
    _output: Any = None
    _decode: Callable[[Any, str], Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The result in plain values; `output` is as the model wrote it."""
        refusal = None if self.refusal is None else {"category": self.refusal.category, **self.refusal.details}
        return {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "outcome": self.outcome,
            "text": self.text,
            "output": self._output,
            "stop_reason": self.stop_reason,
            "usage": self.usage.as_json(),
            "refusal": refusal,
            "limit": self.limit,
            "turns": self.turns,
        }

    @property
    def output(self) -> T:
        """What the agent answered, as its `output` type; without one, the text.

        `RunFailed` when there is none: of type "output_error" when the answer does not fit, and then it says what is
        wrong with it; else of the outcome's.
        """
        if self.outcome == "unfit":
            said = f"wrote an answer that is not of the requested type: {self.limit}{self._said()}"
            raise self._without(said, OUTPUT_ERROR)
        if self.outcome != "answered":
            why = "" if self.limit is None else f" ({self.limit})"
            raise self._without(f"was {self.outcome}{why}, so there is no output{self._said()}", self.outcome)
        if self._decode is None:
            return cast(T, self.text)
        try:
            return cast(T, self._decode(self._output, self.text))
        except ValueError as problem:  # pydantic's is one
            said = f"was answered, but the answer is not of the requested type: {problem}{self._said()}"
            raise self._without(said, OUTPUT_ERROR) from None

    def _said(self) -> str:
        """What the model wrote instead, as much of it as a message holds."""
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
        return f". It wrote: {text!r}" if self.text else ""

    def _without(self, reason: str, type: str) -> RunFailed:
        return RunFailed(self.run_id, "completed", reason, type, what="run", session=self.session_id, ended=False)
