"""Cassettes of stored runs as cassettes, from which a script answers the same again. It reads, and changes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.agents.forks.past import EarlierTurns, lineage
from holdfast.agents.listings import list_messages, list_runs
from holdfast.agents.money.cost import stored_usage
from holdfast.agents.rows import RunRow, TurnRow
from holdfast.agents.statements import RunsSql
from holdfast.agents.values import Message
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.models.request_view import RequestView
from holdfast.models.script import RecordedAnswer, RecordedRequest, Recording, part_of, write
from holdfast.models.steps import ScriptedTurn, stop_of

_ALL = 1_000_000
_REFUSED = "refusal"
_STOPS = {"interrupted": "max_tokens"}  # ours: no provider stops for it


@reading
async def record_runs(tx: Transaction, ids: Sequence[str]) -> list[Recording]:
    """These runs and all that they started, as far as they have come."""
    found: list[Recording] = []
    for id in ids:
        row = await tx.one(RunsSql.find_run, id=id)
        if row is None:
            raise NotFound(f"there is no run {id} in this database.")
        recording = await _record(tx, row)
        if recording is None:
            raise UsageError(f"run {id} has no answer of a model yet: there is nothing to record.")
        found += [recording, *await _below(tx, id)]
    return found


async def _below(tx: Transaction, id: str) -> list[Recording]:
    found: list[Recording] = []
    for child in reversed(await list_runs(tx, parent=id, limit=_ALL)):
        recording = await _record(tx, child)
        found += [] if recording is None else [recording]
        found += await _below(tx, child.id)
    return found


async def _record(tx: Transaction, run: RunRow) -> Recording | None:
    messages = await list_messages(tx, run.session, branch=None, run=run.id, limit=_ALL, archived=True)
    rows = await _turns(tx, run.id)
    answers = [message.turn for message in messages if message.kind == "answer"]
    turns: list[RecordedAnswer] = []
    said: list[dict[str, Any]] = []  # since the last answer
    last: list[dict[str, Any]] = []
    for message in _in_reading_order(messages):
        if message.kind != "answer":
            said += message.blocks
            continue
        row = rows.get(message.turn)
        if row is not None and row.stop_reason == _REFUSED and message.turn != answers[-1]:
            continue  # another model was asked the same: its answer is the one that counts
        turns.append(RecordedAnswer(_asked(last, said), _turn(row, message.blocks, run)))
        last, said = list(message.blocks), []
    model = next((row.model for row in rows.values()), "")
    return Recording(run.agent_name, model, tuple(turns)) if turns else None


async def _turns(tx: Transaction, run: str) -> dict[int, TurnRow]:
    """What is known of each turn; a fork has its first ones from others, as long as those are there."""
    known: dict[int, TurnRow] = {}
    for id, before in [*await lineage(tx, run), EarlierTurns(run, _ALL)]:
        rows = await tx.many(RunsSql.list_turns, run=id, after=0, limit=_ALL)
        known |= {row.number: row for row in rows if row.number < before}
    return known


def _in_reading_order(messages: Sequence[Message]) -> list[Message]:
    """In the order in which the model read them: what came for a run meanwhile is said with the turn that takes it.

    What a compaction put in the place of a message has its ordinal, and comes after it.
    """
    originals: dict[int, Message] = {}
    for message in messages:
        if message.kind != "summary":
            originals.setdefault(message.ordinal, message)
    ordered = originals.values()
    return sorted(ordered, key=lambda message: (_turn_of(message), message.kind == "answer", message.ordinal))


def _turn_of(message: Message) -> int:
    """The turn with which a message was said first, or in which it was answered."""
    return message.turn if message.kind in ("answer", "steer") else message.turn + 1


def _asked(last: list[dict[str, Any]], said: list[dict[str, Any]]) -> RecordedRequest:
    if not said:  # it had paused
        return RecordedRequest(None)
    messages = [{"role": "assistant", "content": last}, {"role": "user", "content": said}]
    return RecordedRequest.of(RequestView({"messages": messages}))


def _turn(row: TurnRow | None, blocks: Sequence[dict[str, Any]], run: RunRow) -> ScriptedTurn:
    parts = tuple(part for part in map(part_of, blocks) if part is not None)
    if row is None:
        return ScriptedTurn(parts, stop_of(parts))
    stop = row.stop_reason or "end_turn"
    refusal = (codec.decode(run.refusal) or {}) if stop == _REFUSED else {}
    return ScriptedTurn(parts, _STOPS.get(stop, stop), refusal.get("category"), stored_usage(row))


async def save(recordings: Sequence[Recording], path: str | Path) -> None:
    """Write a cassette that `Script.cassette` reads, without what looks like a secret."""
    await asyncio.to_thread(_write, path, write(recordings))


def _write(path: str | Path, text: str) -> None:
    """A new file is for this user alone."""
    with open(path, "w", encoding="utf-8", opener=lambda file, flags: os.open(file, flags, 0o600)) as made:
        made.write(text)
