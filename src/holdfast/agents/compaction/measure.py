"""The measure: how much of a model's window a history takes.

What the provider last reported counts, with an estimate of what was said since, corrected by how wrong the estimate
was for what the provider has counted. Near a limit the provider counts; when it cannot, that one time the estimate
stands.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.partition import HistoryMessage
from holdfast.agents.compaction.records import CompactionsSql, HistoryBlock, LastRun, LastUsage
from holdfast.agents.content import estimate
from holdfast.agents.definition import AgentSpec
from holdfast.agents.rows import WindowBlock
from holdfast.agents.runs.history import CallBounds, ask
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.models import Model, ModelFailure, Request
from holdfast.models.facts import facts_for
from holdfast.text import shown

log = logging.getLogger("holdfast.agents")

Source = Literal["provider", "usage", "estimate"]

_NEAR = 0.1  # of a limit: the provider is asked where an estimate could be wrong about which side it is on
_LEAST_SCALE, _MOST_SCALE = 0.5, 4.0
_ANYTHING = [{"type": "text", "text": "."}]  # a history that ends with an answer is not a request
_COUNT_SECONDS = 30.0


class Size(NamedTuple):
    """How many tokens would be sent; `scale` corrects estimates of parts of it.

    `sure` is as much of it as the provider has said itself: only that settles that something does not fit.
    """

    tokens: int
    scale: float
    source: Source
    sure: int


class RequestModel(NamedTuple):
    """Who would be asked: the agent and model whose request is measured. Without an agent only messages count."""

    model: str
    spec: AgentSpec | None

    @property
    def fixed(self) -> int:
        """What every request has before its messages."""
        if self.spec is None:
            return 0
        tools = self.spec.wire_tools(strict=facts_for(self.model).strict_tools)
        return estimate(self.spec.instructions) + (estimate(tools) if tools else 0)

    def window(self, config: Compaction) -> int:
        return config.window or facts_for(self.model).window


def measure(
    teller: RequestModel,
    history: Sequence[HistoryMessage],
    usage: LastUsage | None,
    prompt: Sequence[dict[str, Any]] = (),
) -> Size:
    """The size by what is known here."""
    fixed, new = teller.fixed, estimate(list(prompt)) if prompt else 0
    if usage is None:
        return Size(fixed + sum(each.tokens for each in history) + new, 1.0, "estimate", 0)
    guessed = fixed + sum(each.tokens for each in history if each.ordinal < usage.ordinal)
    scale = min(_MOST_SCALE, max(_LEAST_SCALE, usage.sent / max(1, guessed)))
    since = sum(each.tokens for each in history if each.ordinal > usage.ordinal) + new
    said = usage.sent + usage.said
    return Size(said + round(scale * since), scale, "usage", said)


def is_near(size: Size, limits: Sequence[float]) -> bool:
    return any(abs(size.tokens - limit) <= _NEAR * limit for limit in limits)


async def counted(model: Model, request: Request, size: Size) -> Size:
    """The size by the provider's own count; what is known here, if it does not say."""
    try:
        tokens = await model.count_tokens(request)
    except ModelFailure as failure:
        log.info("the provider did not count a request, so it is estimated: %s", shown(failure))
        return size
    return Size(tokens, size.scale, "provider", tokens)


def request_for(
    teller: RequestModel,
    rows: Sequence[HistoryBlock],
    *,
    credential: str,
    generation: str,
) -> Request:
    """What would be sent next, to be counted."""
    spec = teller.spec or AgentSpec(name="nobody", model=teller.model, caching=False)
    window = [WindowBlock(*row[:7]) for row in rows]
    bounds = CallBounds("", _COUNT_SECONDS, _COUNT_SECONDS)
    asked = ask(
        spec,
        teller.model,
        window,
        _ANYTHING,
        credential=credential,
        container=None,
        bounds=bounds,
        generation=generation,
    )
    return asked.request


# How full a session's window is, by what the provider last said of it: a few rows, however long the history is.
#
# Also who was asked last in a session, which decides by whose window and rules it is measured.


_LOOK = 20  # answers


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUse:
    """`tokens` of the window were in use with the last answer; at `trigger_tokens` the history is compacted."""

    model: str
    window: int
    tokens: int
    trigger_tokens: int


@reading
async def window_use(tx: Transaction, session: str) -> WindowUse | None:
    """None while no model has answered with the history as it is now."""
    run = await tx.one(CompactionsSql.last_run, session=session)
    used = await tx.one(CompactionsSql.recent_usage, session=session, look=_LOOK)
    if run is None or used is None:
        return None
    spec = spec_of(run)
    config = config_of(spec)
    model = model_of(run, spec)
    window = RequestModel(model, spec).window(config)
    return WindowUse(
        model=model, window=window, tokens=used.sent + used.said, trigger_tokens=round(config.trigger * window)
    )


def spec_of(run: LastRun | None) -> AgentSpec | None:
    return None if run is None else AgentSpec.parse(run.definition)


def config_of(spec: AgentSpec | None) -> Compaction:
    return Compaction.of(spec.compaction) if spec is not None and spec.compaction else Compaction()


def model_of(run: LastRun | None, spec: AgentSpec | None) -> str:
    if run is None or spec is None:
        return ""
    return str(codec.decode(run.options).get("model") or spec.model)
