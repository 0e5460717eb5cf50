"""What a model is to Holdfast: a request goes out, the provider's own stream events come back.

Nothing here retries, stores or interprets. The invariant: a `Request` is a value, and `body()` of equal requests is
equal, byte for byte once dumped, so that a request can be hashed, rebuilt and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

Wire = dict[str, Any]
"""JSON as the provider speaks it."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


SET_BY_HOLDFAST = frozenset(
    (
        *("model", "messages", "system", "tools", "functions", "stream", "stream_options"),
        *("max_tokens", "max_completion_tokens", "output_schema"),
    )
)
"""What options of a request may not have: its body has that from the agent and from what was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call, complete: what is sent, what it is called, and how long it may take."""

    model: str
    max_tokens: int
    messages: Sequence[Wire]
    system: Sequence[Wire] = ()
    tools: Sequence[Wire] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, as the provider names them; `effort` is short for `output_config.effort`."""
    output_schema: Mapping[str, Any] | None = None
    """Structured output: the JSON schema that the answer's text will follow."""
    betas: tuple[str, ...] = ()
    call: str = ""
    """`<run>/<turn>/<attempt>`, sent as `x-holdfast-call` so that a witness can name what was bought."""
    idle: float = 120.0
    """Seconds without any event, pings included, after which the provider counts as gone."""
    total: float = 3600.0
    """Seconds for the whole answer."""

    def body(self) -> Wire:
        """The JSON of this request, without `stream`. Empty parts are left out: the provider refuses some of them."""
        body: Wire = {"model": self.model, "max_tokens": self.max_tokens, "messages": list(self.messages)}
        if self.system:
            body["system"] = list(self.system)
        if self.tools:
            body["tools"] = list(self.tools)
        options = dict(self.options)
        output = dict(options.pop("output_config", None) or {})
        if (effort := options.pop("effort", None)) is not None:
            output["effort"] = effort
        if self.output_schema is not None:
            output["format"] = {"type": "json_schema", "schema": dict(self.output_schema)}
        if output:
            body["output_config"] = output
        return body | options


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What the headers of a response say, a refusal's too; known before the first event."""

    status: int = 200
    request_id: str | None = None
    organization: str | None = None
    retry_after: float | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    """What is left of each rate limit: `requests-remaining` and `requests-reset`, a time in ISO 8601, and so on.

    An answer that leaves "0" of one closes the lane until its reset, before anybody is refused.
    """


@runtime_checkable
class ColdStart(Protocol):
    """A model that has something to make ready before its first call."""

    async def warm(self) -> None:
        """Import and make whatever the first call would wait for; nothing is sent."""


class Model(Protocol):
    """A provider. An instance serves any number of calls at once."""

    def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        """Yield the provider's raw stream events, unknown ones and pings included; the last is `message_stop`.

        `answered` is called as soon as the headers are there, also before a refusal is raised. Whatever goes wrong is a
        `ModelFailure`, and an iteration that ends without one is complete. Closing the iterator (`aclose`, or
        cancelling the task in it) closes the HTTP call.
        """

    async def count_tokens(self, request: Request) -> int:
        """How many input tokens the request has, as the provider counts; raises `ModelFailure`."""

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""


def canonical(value: object) -> str:
    """JSON in one spelling: equal values give equal text."""
    return _CANONICAL.encode(value)


def unmarked(value: Any) -> Any:
    """A request body or a part of it without cache markers: they change what is paid, not what is asked."""
    if isinstance(value, dict):
        return {key: unmarked(each) for key, each in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    return value


def request_hash(body: Wire) -> str:
    """The identity of a request body, cache markers and `stream` aside."""
    asked = {key: value for key, value in body.items() if key != "stream"}
    return hashlib.sha256(canonical(unmarked(asked)).encode()).hexdigest()


# Files that the provider keeps: what is known of one, and who can upload one.


SHORTEST, LONGEST = 3_600, 7_776_000
"""Seconds for which a file may be kept, if it is not to be kept until it is deleted."""


class StoredFile(NamedTuple):
    id: str
    name: str
    media_type: str
    size: int
    expires_us: int | None


@runtime_checkable
class Files(Protocol):
    """A provider that keeps files."""

    async def upload_file(
        self, path: Path, media_type: str, *, expires_in: int | None = None, total: float = 600.0
    ) -> StoredFile:
        """Upload a file, to be kept for so many seconds, or until it is deleted; raises `ModelFailure`."""
