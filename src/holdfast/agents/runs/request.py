"""The request: what is sent to a model for one turn. Pure, and always the same: a prefix once sent never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.compaction.config import PROVIDER_BETA, provider_options
from holdfast.agents.definition import AgentSpec
from holdfast.agents.file_references import expired, expired_in
from holdfast.agents.rows import WindowBlock
from holdfast.agents.runs.history import loop_lost_thinking, messages
from holdfast.kernel import codec
from holdfast.models import Request
from holdfast.models.cache_markers import with_breakpoints
from holdfast.models.facts import facts_for
from holdfast.models.protocol import canonical
from holdfast.models.schemas import accepted

_INSISTS = "enabled"  # so asked to think, a model has to be shown what it thought in a tool loop that is open


class BuiltRequest(NamedTuple):
    request: Request
    hash: str
    fingerprint: str


class CallBounds(NamedTuple):
    """What a call is named for a witness, and how many seconds it may take, silent and in all."""

    call: str
    idle: float
    total: float


def ask(  # noqa: PLR0913  what decides a request
    spec: AgentSpec,
    model: str,
    window: Sequence[WindowBlock],
    prompt: Sequence[dict[str, Any]],
    *,
    credential: str,
    container: str | None,
    bounds: CallBounds,
    generation: str = "",
    now: int = 0,
) -> BuiltRequest:
    """The request of a turn. `prompt`: the message that is not stored yet, on the first one.

    `generation` of the history: thinking is bound to the words before it, and another generation has other words.
    So has a history of which a file has expired by `now`.
    """
    facts = facts_for(model)
    system = [{"type": "text", "text": spec.instructions}] if spec.instructions else []
    tools = spec.wire_tools(strict=facts.strict_tools)
    gone = sorted({*expired_in([row.body for row in window], now), *expired(prompt, now)})
    identity = [system, tools, model, credential, spec.output, *filter(None, (generation, gone))]
    fingerprint = codec.digest(canonical(identity))[:32]
    sent = messages(window, fingerprint, now, prompt)
    managed = provider_options(spec.compaction, facts.window)
    options = {**managed, **spec.options}
    if (options.get("thinking") or {}).get("type") == _INSISTS and loop_lost_thinking(window, fingerprint):
        options["thinking"] = {"type": "disabled"}  # until the loop is closed
    if container is not None:
        options["container"] = container
    request = Request(
        model=model,
        max_tokens=min(spec.max_tokens, facts.max_output),
        messages=sent,
        system=system,
        tools=tools,
        options=options,
        output_schema=None if spec.output is None else accepted(spec.output),
        betas=(PROVIDER_BETA,) if managed else (),
        call=bounds.call,
        idle=bounds.idle,
        total=bounds.total,
    )
    hashed = codec.digest(canonical(request.body()))  # as `request_hash` does, where there are no markers yet
    marked = with_breakpoints(request, hour=spec.caching == "1h") if spec.caching else request
    return BuiltRequest(marked, hashed, fingerprint)
