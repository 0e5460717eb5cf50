"""What a simulated provider is at a moment: how it answers, and what it has seen."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.models.prompt_cache import PromptCache
from holdfast.models.script import Script
from holdfast.models.simulator.batches import Bay
from holdfast.models.simulator.files import Cabinet
from holdfast.models.simulator.http import RequestRefused, SimulatorConnection
from holdfast.models.spool import Witness

# Rules: which calls fail, and how. Declared as JSON, decided by counting, so that the same calls fail every time.
#
#     A rule: {"match": {"nth": 3, "path": "/v1/messages"}, "do": {"status": 429, "retry_after": 5}}
#
# A rule counts the calls that fit its `path`, `model` and `call`; `nth`, `every` and `probability` choose among
# those.
# Each rule counts for itself; of those that fit a call the first is played.


MATCHES = {
    "nth": "that call alone, counted from 1",
    "every": "each n-th call",
    "probability": "this share of the calls, drawn by seed and count",
    "model": "a model's name",
    "call": "a regular expression that x-holdfast-call contains",
    "path": "a path, in which * is any one part; without it /v1/messages",
    "method": "GET, POST or DELETE: a batch is made and batches are listed by one path",
}
FAULTS = {
    "status": "answer with this status; with type, code, message, retry_after and headers",
    "overloaded": "answer 529",
    "media": "refuse requests with an image or a document in them: that type, or true for both",
    "slow_headers": "wait so many seconds before answering",
    "cut": "close the connection: {events: n} or {bytes: n} into the stream, {lines: n} into the results of a batch, "
    "{headers: true} before any answer",
    "stall": "send nothing any more {after: n} events or lines, for {seconds: s} or for ever",
    "pings": "send {count: n} pings, one every {seconds: s}, {after: n} events",
    "drip": "send {bytes: n} at a time, one piece every {seconds: s}",
    "error_event": "send an error event {after: n} events, of this {type}",
    "malformed": "send an event or a line that is not JSON {after: n} of them",
    "unknown_event": "send an event of an unknown type {after: n} events",
    "unknown_block": "add a block of an unknown type to the answer",
    "truncated_input": "break off the arguments of tool calls",
    "duplicate_ids": "give all tool calls of the answer one id",
    "no_ids": "leave the ids of tool calls out",
    "no_names": "leave the names of tool calls out",
    # where a batch is made
    "lost_answer": "make the batch and cut the connection; {status: n} answers that instead, {stall: true} nothing",
    "slow_batch": "the batch ends after so many seconds; where it is canceled, that takes so many",
    "expire": "these requests of the batch expire",
    "error": "these end in an error, of this {type} and {message}",
    "cancel": "these are canceled",
    # where its results are read, or where it is made, for every reading
    "duplicate": "send these lines twice",
    "missing": "leave these lines out",
    "reorder": "send the lines in another order",
    "pad": "make these lines {bytes: n} long",
    "gone": "there are no results any more",
}
CHOOSING = ("expire", "error", "cancel", "duplicate", "missing", "pad")
"""Which requests: {every: n}, {share: x}, or true for all. Requests are counted over all batches."""
_DETAILS = {"type", "code", "message", "retry_after", "headers"}


@dataclass(slots=True)
class FaultRule:
    match: Mapping[str, Any]
    do: Mapping[str, Any]
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for given, known in ((self.match, set(MATCHES)), (self.do, set(FAULTS) | _DETAILS)):
            for name in given:
                if name not in known:
                    raise UsageError(f"a rule has no {name!r}; there are {', '.join(sorted(known))}.")
        for name in CHOOSING:
            which = self.do.get(name, True)
            if which is not True and not (isinstance(which, Mapping) and {"every", "share"} & which.keys()):
                raise UsageError(f'{name} is {{"every": n}}, {{"share": x}} or true, not {which!r}.')

    def fits(self, method: str, path: str, model: str, call: str, draw: str) -> bool:
        """Whether this call fails; each call is asked once, for asking counts it."""
        match = self.match
        if not _matches(match.get("path", "/v1/messages"), path) or match.get("method", method) != method:
            return False
        if match.get("model", model) != model:
            return False
        if "call" in match and not re.search(match["call"], call):
            return False
        self.seen += 1
        if "nth" in match and self.seen != match["nth"]:
            return False
        if "every" in match and self.seen % match["every"]:
            return False
        return "probability" not in match or _drawn(f"{draw}/{self.seen}") < match["probability"]


def _matches(pattern: str, path: str) -> bool:
    wanted, given = pattern.split("/"), path.split("/")
    return len(wanted) == len(given) and all(each in ("*", part) for each, part in zip(wanted, given, strict=True))


def chosen(which: Any, number: int, draw: str) -> bool:
    """Whether the request of this number is among those that a fault is for."""
    if not isinstance(which, Mapping):
        return which is True
    if "every" in which and number % which["every"]:
        return False
    return "share" not in which or _drawn(f"{draw}/{number}") < which["share"]


def _drawn(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


def read_rules(value: Any) -> list[FaultRule]:
    """Rules from their JSON; `UsageError` for what is none."""
    if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) and "do" in each for each in value):
        raise UsageError('rules are a list of {"match": {...}, "do": {...}}.')
    return [FaultRule(each.get("match") or {}, each["do"]) for each in value]


_LINES = ("requests", "tokens", "input-tokens", "output-tokens")


def signing_key(seed: int) -> str:
    """What thinking is signed with."""
    return f"provider/{seed}"


@dataclass(slots=True)
class SimulatorState:
    seed: int
    script: Script
    rules: list[FaultRule]
    witness: Witness
    clock: Clock
    pace: float
    bay: Bay
    calls: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    cabinet: Cabinet = field(default_factory=Cabinet)
    cache: PromptCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = PromptCache(self.clock)

    @property
    def key(self) -> str:
        return signing_key(self.seed)

    def headers(self, number: object) -> dict[str, str]:
        """What every response to call `number` says."""
        id = hashlib.sha256(f"{self.seed}/{number}".encode()).hexdigest()[:24]
        reset = datetime.fromtimestamp(self.clock.wall_us() // 1_000_000, UTC) + timedelta(minutes=1)
        limits = {"limit": "4000", "remaining": "3999", "reset": reset.isoformat().replace("+00:00", "Z")}
        return {
            "request-id": f"req_{id}",
            "anthropic-organization-id": "org_simulated",
            **{f"anthropic-ratelimit-{line}-{name}": value for line in _LINES for name, value in limits.items()},
        }

    async def refuse(
        self, connection: SimulatorConnection, refused: RequestRefused, headers: Mapping[str, str]
    ) -> None:
        self.stats[f"status {refused.status}"] += 1
        body = {"type": "error", "error": refused.error, "request_id": headers.get("request-id")}
        await connection.answer(refused.status, body, {**headers, **refused.headers})
