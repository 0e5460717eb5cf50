"""Storing messages: block by block, byte for byte; large blocks once, by their hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from holdfast.agents.records import NewBlock
from holdfast.agents.statements import Messages
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id

Kind = Literal["prompt", "answer", "results"]

_LARGE = 64 * 1024
_CAP = 1 << 28


class Placed(Protocol):
    """As much of a run as a message of it needs."""

    @property
    def id(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def branch(self) -> str: ...


async def add_message(tx: Transaction, run: Placed, kind: Kind, turn: int, blocks: Sequence[dict[str, Any]]) -> str:
    """Append a message to the run's branch. Its id is derived, so that a second time adds none."""
    id = derived_id(run.id, kind, turn)
    rows = []
    for ordinal, block in enumerate(blocks):
        body = encode_block(block)
        blob = None
        if len(body) > _LARGE:
            blob = encoding.digest(body)
            await tx.run(Messages.add_blob, hash=blob, body=body)
        rows.append(NewBlock(id, ordinal, str(block.get("type", "")), None if blob else body, blob))
    await tx.run(
        Messages.add_message,
        id=id,
        session=run.session,
        branch=run.branch,
        role="assistant" if kind == "answer" else "user",
        run=run.id,
        turn=turn,
        kind=kind,
        blocks=rows,
    )
    return id


def encode_block(block: dict[str, Any]) -> str:
    """A block as it is stored: the provider's own order of fields is kept."""
    import json

    text = json.dumps(block, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    encoding.encode(block, what="a block", cap=_CAP)  # refuses what one of the databases cannot hold
    return text
