"""From the row of a run to its result, and to what it used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from holdfast.agents.rows import RunRow, UsageBelow, UsageRow
from holdfast.agents.states import RunState
from holdfast.client.results import OutcomeName, Refusal, Result, Usage
from holdfast.errors import RunFailed
from holdfast.kernel import codec
from holdfast.text import shown_text


def usage_of(row: RunRow | UsageRow | UsageBelow) -> Usage:
    return Usage(
        int(row.input_tokens or 0),
        int(row.output_tokens or 0),
        int(row.cache_write_tokens or 0),
        int(row.cache_read_tokens or 0),
        int(row.cost_nano or 0),
        int(row.turns or 0),
        1 if isinstance(row, RunRow) else int(row.runs),
    )


def result_of(
    row: RunRow, decode: Callable[[Any, str], Any] | None = None, below: UsageBelow | None = None
) -> Result[Any]:
    """The result of a run that has ended; `RunFailed` when it failed or was cancelled.

    `below` is what it and all runs below it have used.
    """
    if row.state != RunState.COMPLETED:
        why = row.error or "no reason was given"
        raise RunFailed(
            row.id, row.state, why, row.error_type or "", what="run", session=row.session, shown=shown_text(why)
        )
    stored = codec.decode(row.output) or {}
    refusal = codec.decode(row.refusal)
    return Result(
        run_id=row.id,
        session_id=row.session,
        outcome=cast(OutcomeName, row.outcome or "answered"),
        text=str(stored.get("text", "")),
        stop_reason=row.stop_reason,
        usage=usage_of(row if below is None else below),
        refusal=None if refusal is None else Refusal(refusal.get("category"), refusal),
        limit=row.limited,
        turns=row.turns,
        _output=stored.get("output"),
        _decode=decode,
    )
