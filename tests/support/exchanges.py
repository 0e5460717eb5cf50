"""What must hold of stored conversations and of what was bought for them, whatever happened on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Block = Mapping[str, Any]


class Said(NamedTuple):
    """One message of one branch, in its place."""

    role: str
    run: str
    blocks: Sequence[Block]


def broken_exchange(messages: Sequence[Said], *, open_tail: bool) -> str:
    """What is wrong with the tool calls of a branch, in words (I13, I15); empty when nothing is.

    Every use has one result, in the next message, in the same order, and there is no result without a use. With
    `open_tail` the last message may still wait for its results.
    """
    wanted: list[str] = []
    for place, message in enumerate(messages):
        results = [str(block["tool_use_id"]) for block in message.blocks if block["type"] == "tool_result"]
        if results != wanted:
            return f"message {place} answers {results}, and {wanted} were asked for"
        wanted = [str(block["id"]) for block in message.blocks if block["type"] == "tool_use"]
        if wanted and message.role != "assistant":
            return f"message {place} of a {message.role} asks for {wanted}"
    return f"{wanted} were never answered" if wanted and not open_tail else ""


def purchases(witness: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, int]]:
    """How often each turn of each run was sent to a model."""
    return Counter(turn_of(line["call"]) for line in witness if line["event"] == "sent")


def turn_of(call: str) -> tuple[str, int]:
    """The run and the turn of `<run>/<turn>/<attempt>`."""
    run, turn, _ = call.split("/")
    return run, int(turn)
