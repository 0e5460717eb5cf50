"""Replies: an answer from a batch, read as one that was streamed."""

from __future__ import annotations

from holdfast.agents.batches.statements import BatchesSql
from holdfast.agents.content import readable
from holdfast.agents.runs.commit import Answer, Decision
from holdfast.agents.runs.turns import Committed, Play, commit
from holdfast.kernel.database import Transaction
from holdfast.models.fold import Reply
from holdfast.models.protocol import Wire


def reply_of(message: Wire, model: str) -> Reply:
    """What a message of the provider says; `model` is the one that was asked."""
    return Reply(
        id=str(message.get("id", "")),
        model=str(message.get("model") or model),
        blocks=readable(message.get("content") or []),
        stop_reason=message.get("stop_reason"),
        stop_details=message.get("stop_details"),
        usage=message.get("usage") or {},
        container=message.get("container"),
    )


async def commit_kept(tx: Transaction, play: Play, answer: Answer, decision: Decision, custom_id: str) -> Committed:
    """Store an answer that another program's worker had kept for this one: what was in doubt is known now."""
    committed = await commit(tx, play, answer, decision)
    await tx.run(BatchesSql.settle_doubt, custom_id=custom_id)
    await tx.run(BatchesSql.take_answer, custom_id=custom_id)
    return committed
