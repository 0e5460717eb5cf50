"""Asking: what is sent to a model for one turn. Pure, and the same every time: a prefix once sent never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.definitions import AgentSpec
from holdfast.agents.history import Message, merged, messages
from holdfast.agents.records import WindowBlock
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.models import Request
from holdfast.models.caching import with_breakpoints
from holdfast.models.facts import Facts, facts_for
from holdfast.models.protocol import canonical


class Asked(NamedTuple):
    request: Request
    hash: str
    fingerprint: str


class Bounds(NamedTuple):
    """What a call is named for a witness, and how many seconds it may take, silent and in all."""

    call: str
    idle: float
    total: float


def facts_of(model: str) -> Facts:
    try:
        return facts_for(model)
    except UsageError:
        return Facts(name=model, window=200_000, max_output=64_000)


def ask(
    spec: AgentSpec,
    model: str,
    window: Sequence[WindowBlock],
    prompt: Sequence[dict[str, Any]],
    *,
    credential: str,
    container: str | None,
    bounds: Bounds,
) -> Asked:
    """The request of a turn. `prompt`: the message that is not stored yet, on the first one."""
    facts = facts_of(model)
    system = [{"type": "text", "text": spec.instructions}] if spec.instructions else []
    tools = spec.wire_tools(strict=facts.strict_tools)
    fingerprint = encoding.digest(canonical([system, tools, model, credential, spec.output]))[:32]
    sent = messages(window, fingerprint)
    if prompt:
        said = [Message(each["role"], each["content"]) for each in sent]
        sent = [
            {"role": message.role, "content": message.blocks}
            for message in merged([*said, Message("user", list(prompt))])
        ]
    options = dict(spec.options)
    if container is not None:
        options["container"] = container
    request = Request(
        model=model,
        max_tokens=min(spec.max_tokens, facts.max_output),
        messages=sent,
        system=system,
        tools=tools,
        options=options,
        output_schema=spec.output,
        call=bounds.call,
        idle=bounds.idle,
        total=bounds.total,
    )
    hashed = encoding.digest(canonical(request.body()))  # as `request_hash` does, where there are no markers yet
    return Asked(with_breakpoints(request) if spec.caching else request, hashed, fingerprint)
