"""Messages as they are stored: block by block, byte for byte; large blocks once, by their hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from holdfast.agents.rows import NewBlock, NewMessage
from holdfast.agents.statements import MessagesSql
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id

Kind = Literal["prompt", "answer", "results", "continuation", "steer", "summary"]

LARGE = 64 * 1024
_CAP = 1 << 28


class RunRef(Protocol):
    """As much of a run as a message of it needs."""

    @property
    def id(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def branch(self) -> str: ...


async def add_message(tx: Transaction, run: RunRef, kind: Kind, turn: int, blocks: Sequence[dict[str, Any]]) -> str:
    """Append a message to the run's branch. Its id is derived, so that a second time adds none."""
    (id,) = await add_messages(tx, [MessageDraft(run, kind, turn, blocks)])
    return id


class MessageDraft(NamedTuple):
    """A message of a run, to be appended."""

    run: RunRef
    kind: Kind
    turn: int
    blocks: Sequence[dict[str, Any]]
    part: str = ""  # tells messages of one kind and turn apart

    @property
    def id(self) -> str:
        return derived_id(self.run.id, self.kind, self.turn, *([self.part] if self.part else []))


async def add_messages(tx: Transaction, said: Sequence[MessageDraft]) -> list[str]:
    """Append messages, at most one to each branch; returns their ids."""
    messages, rows = [], []
    for each in said:
        role = "assistant" if each.kind == "answer" else "user"
        run = each.run
        messages.append(NewMessage(each.id, run.session, run.branch, role, run.id, each.turn, each.kind))
        for ordinal, block in enumerate(each.blocks):
            body = encode_block(block)
            blob = None
            if len(body) > LARGE:
                blob = codec.digest(body)
                await tx.run(MessagesSql.add_blob, hash=blob, body=body)
            rows.append(NewBlock(each.id, ordinal, str(block.get("type", "")), None if blob else body, blob))
    if messages:
        await tx.run(MessagesSql.add_messages, messages=messages, blocks=rows)
    return [message.id for message in messages]


def encode_block(block: dict[str, Any]) -> str:
    """A block as it is stored: the provider's own order of fields is kept."""
    import json

    text = json.dumps(block, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    codec.encode(block, what="a block", cap=_CAP)  # refuses what one of the databases cannot hold
    return text
