"""Ids of calls: every call of an answer has one that no other call of the conversation has.

Providers see to that, and what stands between us and them does not always. The answer is paid for, so it is kept: a
call without an id, or with one that is taken, gets an id of ours. It is made from the run, the turn and the place, so
that reading the same answer again gives the same one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.agents.rows import WindowBlock
from holdfast.agents.runs.history import CLIENT_USE
from holdfast.kernel import codec
from holdfast.kernel.ids import derived_id
from holdfast.models import Reply

_ID = re.compile("[a-zA-Z0-9_-]{1,256}")
UNNAMED = "unnamed"  # what a call without a name is called in the history


class Mended(NamedTuple):
    """An answer whose calls can be told apart, and what was changed for that, one entry for each call."""

    reply: Reply
    repairs: tuple[dict[str, Any], ...] = ()


def used_ids(window: Sequence[WindowBlock]) -> set[str]:
    """The ids of the calls that were made before."""
    return {str(codec.decode(row.body).get("id")) for row in window if row.type == CLIENT_USE}


def mended(reply: Reply, run: str, turn: int, taken: Collection[str] = ()) -> Mended:
    """The answer with an id and a name for each call; `taken` are the ids of earlier ones."""
    uses = [place for place, block in enumerate(reply.blocks) if block.get("type") == CLIENT_USE]
    if not uses:
        return Mended(reply)
    blocks, seen = list(reply.blocks), set(taken)
    repairs: list[dict[str, Any]] = []
    bad: dict[str, str] = {}
    nameless: set[str] = set()
    for place in uses:
        block = blocks[place]
        id, name, given = block.get("id"), block.get("name"), block.get("input")
        own = id if isinstance(id, str) and _ID.fullmatch(id) and id not in seen else _own_id(run, turn, place)
        named = isinstance(name, str) and bool(name.strip())
        seen.add(own)
        if not named:
            nameless.add(own)
        if place in reply.bad_places or not isinstance(given, dict):
            bad[own] = reply.bad_inputs.get(str(id), "")
        if own != id or not named or not isinstance(given, dict):
            blocks[place] = {
                **block,
                "id": own,
                "name": name if named else UNNAMED,
                "input": given if isinstance(given, dict) else {},
            }
        if own != id or not named:
            repairs.append({"index": place, "was": codec.clip(str(id), 200), "id": own, "named": named})
    kept = replace(reply, blocks=blocks, bad_inputs=bad, nameless=frozenset(nameless), duplicates=())
    return Mended(kept, tuple(repairs))


def _own_id(run: str, turn: int, place: int) -> str:
    return "toolu_" + derived_id(run, "use", turn, place).replace("-", "")
