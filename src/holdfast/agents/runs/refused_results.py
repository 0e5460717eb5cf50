"""Results of tools that a provider refuses: each is replaced by an error, once, and the model is asked again.

The answer that called the tools was taken, so their results cannot be left out. The provider's words often say which
block it means (`messages.3.content.1`); where they do not, every result of the turn that is more than text is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from holdfast.agents.attachments import is_more_than_text
from holdfast.agents.events.log import Changes
from holdfast.agents.rows import LoadedRun
from holdfast.agents.runs import turns
from holdfast.agents.runs.refused_content import (
    CONTENT_KINDS,
    ContentRefusal,
    RefusedCall,
    is_replaced,
    replace_results,
)
from holdfast.agents.runs.turns import Play
from holdfast.agents.statements import MessagesSql, RunsSql
from holdfast.agents.states import TurnState
from holdfast.kernel import codec, leases
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id

_PLACE = re.compile(r"\bmessages\.(\d{1,9})\.content\.(\d{1,9})\b")


def may_be_mended(kind: str, turn: int) -> bool:
    """Whether results of tools may be what was refused: the first turn has none."""
    return turn > 1 and kind in CONTENT_KINDS


def to_replace(results: Sequence[dict[str, Any]], sent: Sequence[dict[str, Any]], refusal: ContentRefusal) -> list[str]:
    """Which calls' results the refusal is about; none when results were replaced before. `sent`: the whole request."""
    if any(map(is_replaced, results)) or not refusal.is_about(results):
        return []
    carriers = [str(block["tool_use_id"]) for block in results if is_more_than_text(block)]
    place = _PLACE.search(refusal.message)
    if place is None:
        return carriers
    message, number = int(place[1]), int(place[2])
    content = sent[message]["content"] if message < len(sent) else None
    block = content[number] if isinstance(content, list) and number < len(content) else {}
    if any(block.get("tool_use_id") == result["tool_use_id"] for result in results):
        return [str(block["tool_use_id"])]
    # What is old was taken before: it is one too many now. What is new and no result is not ours to replace.
    return carriers if message < len(sent) - 1 or block.get("type") == "tool_result" else []


async def mend_results(  # noqa: PLR0917  whose results, and what was said of them
    tx: Transaction,
    run: LoadedRun,
    turn: int,
    sent: Sequence[dict[str, Any]],
    refusal: ContentRefusal,
    changes: Changes,
) -> bool:
    """Replace what was refused of the results that this turn was to read; False: there is nothing to replace."""
    message = derived_id(run.id, "results", turn - 1)
    blocks = await tx.many(MessagesSql.blocks_of, messages=[message])
    results = [codec.decode(block.body) for block in blocks]
    uses = to_replace([block for block in results if block.get("type") == "tool_result"], sent, refusal)
    if not uses:
        return False
    await replace_results(tx, message, RefusedCall(run.id, turn - 1), blocks, uses, refusal)
    changes.tell(run.id, "results_refused", {"turn": turn, "calls": uses, "message": refusal.words})
    return True


async def fail_and_mend(
    tx: Transaction, play: Play, error: dict[str, Any], sent: Sequence[dict[str, Any]], *, unknown: bool
) -> bool:
    """Note that a call was refused, and make its results such that it can be made again; False: nothing is changed."""
    changes = Changes(play.prefix)
    refusal = ContentRefusal(str(error["kind"]), str(error["message"]))
    await leases.hold(tx, play.lease)
    turn = await tx.one(RunsSql.find_turn, run=play.run.id, number=play.number)
    failed = (TurnState.FAILED, play.lease.epoch, play.lease.token)
    if turn is not None and (turn.state, turn.epoch, turn.token) == failed:
        return True  # an earlier call did it, and its answer was lost
    if not await mend_results(tx, play.run, play.number, sent, refusal, changes):
        return False
    await turns.fail_turn(tx, play, error, unknown=unknown, counted=unknown)
    await changes.write(tx)
    return True
