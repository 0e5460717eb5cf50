"""Results: how a run ended, and what it used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from holdfast.clock import Ports
from holdfast.errors import RunFailed
from holdfast.reasons import Gate, Reason
from holdfast.text import plural, shown

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


# Slow waits: a caller that has waited for a result for three seconds reads in the log what `why` knows of it.
#
# A job or a run is explained once in a process, however many wait for it. A wait for a person, such as for an
# approval,
# is what the program asked for, and no warning. The loop that looks for results calls `look`, so a wait that ends
# sooner
# costs an entry of a dictionary. An error while `why` is asked is a line at DEBUG: it never reaches the caller.


log = logging.getLogger("holdfast")

PATIENCE = 3.0
_REMEMBERED = 1_000  # ids that were explained; older ones are forgotten
# Somebody works on it, a person was asked, or its time comes by itself. Any other gate may need an operator.
_NORMAL = frozenset(
    {Gate.LEASED, Gate.ENDED, Gate.CHILDREN, Gate.TOOLS, Gate.BATCH, Gate.SESSION, Gate.NOT_DUE, Gate.PERSON}
)


class _Wait(NamedTuple):
    id: str
    since: float


class SlowWaits:
    """The waits of one event loop for jobs, or for runs."""

    def __init__(self, ports: Ports, noun: str, ask: Callable[[str], Awaitable[Sequence[Reason]]]) -> None:
        """`noun` is what they wait for, `ask` says why one of these does not get on."""
        self._ports = ports
        self._noun = noun
        self._ask = ask
        self._waits: dict[object, _Wait] = {}  # the oldest first
        self._asking: set[asyncio.Task[None]] = set()
        self._explained: dict[str, None] = {}  # the oldest first

    def begin(self, key: object, id: str) -> None:
        """Somebody waits for this from now on. `key` is this wait's own."""
        self._waits[key] = _Wait(id, self._ports.clock.monotonic())

    def progressed(self, key: object) -> None:
        """Something came, and more is waited for."""
        wait = self._waits.pop(key, None)
        if wait is not None:
            self.begin(key, wait.id)

    def end(self, key: object) -> None:
        self._waits.pop(key, None)

    def look(self) -> None:
        """Explain the waits that have lasted too long: each job or run once."""
        if not self._waits:
            return
        before = self._ports.clock.monotonic() - PATIENCE
        late: list[object] = []
        for key, wait in self._waits.items():
            if wait.since > before:
                break
            late.append(key)
        ids = [id for id in dict.fromkeys(self._waits.pop(key).id for key in late) if id not in self._explained]
        for id in ids:
            self._explained[id] = None
        while len(self._explained) > _REMEMBERED:
            del self._explained[next(iter(self._explained))]
        if ids and log.isEnabledFor(logging.WARNING):
            task = asyncio.create_task(self._explain(ids[0], len(ids) - 1), name="why a result does not come")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        self._waits.clear()

    async def _explain(self, id: str, others: int) -> None:
        """Ask for one: where many wait, they mostly wait for the same."""
        try:
            reasons = await self._ask(id)
        except Exception:  # the loop that looks for results tells the caller of real trouble
            log.debug("why %s %s does not end could not be found out", self._noun, id, exc_info=True)
            return
        level = logging.INFO if reasons and all(each.gate in _NORMAL for each in reasons) else logging.WARNING
        sentences = [shown(each.sentence) for each in reasons]
        known = "; ".join(sentences) or "nothing holds it back, and no worker has taken it yet"
        if any(each.gate is Gate.NO_WORKER for each in reasons):
            known += ". Start one with `holdfast worker MODULE:APP`"
        has = "has" if others == 1 else "have"
        more = f" {plural(others, f'more {self._noun}')} {has} been awaited as long." if others else ""
        about = {self._noun: id}
        log.log(level, "still waiting for %s %s after %g s: %s.%s", self._noun, id, PATIENCE, known, more, extra=about)
