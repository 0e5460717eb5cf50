"""How full a session's window is, by what the provider last said of it: a few rows, however long the history is.

Also who was asked last in a session, which decides by whose window and rules it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.agents.compaction.compaction_rows import LastRun
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.measure import Teller
from holdfast.agents.compaction.statements import CompactionsSql
from holdfast.agents.definition import AgentSpec
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading

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
    window = Teller(model, spec).window(config)
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
