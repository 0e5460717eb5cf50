"""The `scripted:` model: a script in this process, without key, network or price."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models.batches import (
    LASTS_US,
    BatchItem,
    BatchLine,
    BatchStatus,
    check_items,
    errored,
    line_bytes,
    line_of,
)
from holdfast.models.failures import ModelFailure
from holdfast.models.prompt_cache import PromptCache
from holdfast.models.protocol import Request, ResponseHead, Wire, request_hash
from holdfast.models.schemas import objection
from holdfast.models.script import Script, ScriptedTurn
from holdfast.models.spool import KeptBatch, Shelf, Spool, Witness
from holdfast.models.wire import count_tokens, to_batch_message, to_events

# Batches of the `scripted:` model: answered by the script when they are made, and shown when their time is up.
#
# Everything in a batch has been processed, and billed, from the start. So a cancel ends a batch early and takes
# nothing
# back, as with a provider whose requests cannot be interrupted.


_AT_ONCE = 50  # requests that are answered before others may run


class ScriptedBatches:
    """`Batches` of a script; what it bills is in the `witness` from the moment a batch is made."""

    def __init__(self, script: Script, *, witness: Witness, ports: Ports, shelf: Shelf, batch_time: float) -> None:
        if not 0 <= batch_time * 1_000_000 < LASTS_US:
            raise UsageError(
                f"a batch ends within a day, not after {batch_time:g} seconds; choose a shorter batch_time."
            )
        self._script, self._shelf, self.witness = script, shelf, witness
        self._clock, self._random = ports.clock, ports.random
        self._batch_us = round(batch_time * 1_000_000)

    def turn(self, body: Wire, call: str) -> ScriptedTurn:
        """What is answered to a request; `call` is its name to a witness."""
        return self._script.turn(body)

    async def submit_batch(
        self, items: Sequence[BatchItem], *, call: str, total: float, answered: Callable[[ResponseHead], None]
    ) -> BatchStatus:
        check_items(items)
        results: list[tuple[str, Wire]] = []
        for number, item in enumerate(items, 1):
            results.append((item.custom_id, self._result(item)))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        now = self._clock.wall_us()
        batch = KeptBatch(
            id=self._free_id(),
            call=call,
            created_us=now,
            ends_us=now + self._batch_us,
            counts=dict(Counter(result["type"] for _, result in results)),
        )
        self._shelf.keep(batch, [line_bytes(custom_id, result) for custom_id, result in results])
        self._bill(batch, results)
        answered(ResponseHead(request_id=f"req_{batch.id.removeprefix('msgbatch_')}"))
        return replace(batch, ends_us=now + LASTS_US).status(
            now
        )  # even if its time is up at once, it is in progress first

    def _result(self, item: BatchItem) -> Wire:
        try:
            body = json.loads(item.params)
        except ValueError as problem:  # as would the body that it is a part of
            raise ModelFailure("bad_request", f"{item.custom_id} is not JSON: {problem}.", bought="no") from problem
        try:
            _check_body(body)
            check_schemas(body)
            message = to_batch_message(self.turn(body, item.custom_id), body, item.custom_id)
        except (UsageError, UnicodeEncodeError) as problem:  # the latter: half of a surrogate pair is not text
            return errored({"type": "invalid_request_error", "message": str(problem)})
        return {"type": "succeeded", "message": message}

    def _free_id(self) -> str:
        """One that nobody has: processes with the same seed draw the same."""
        while True:
            id = f"msgbatch_{self._random.getrandbits(96):024x}"
            try:
                self._shelf.get(id)
            except KeyError:
                return id

    def _bill(self, batch: KeptBatch, results: Sequence[tuple[str, Wire]]) -> None:
        self.witness.write(event="batch", batch=batch.id, size=len(results), call=batch.call)
        for custom_id, result in results:
            if result["type"] == "succeeded":
                message = result["message"]
                bill = {"usage": message["usage"], "model": message["model"], "tier": "batch"}
                self.witness.write(event="billed", call=custom_id, batch=batch.id, **bill)

    async def get_batch(self, id: str) -> BatchStatus:
        return self._kept(id).status(self._clock.wall_us())

    async def list_batches(self, since_us: int) -> list[BatchStatus]:
        now = self._clock.wall_us()
        found = [batch.status(now) for batch in self._shelf.every() if batch.created_us >= since_us]
        return sorted(found, key=lambda batch: batch.created_us, reverse=True)

    async def cancel_batch(self, id: str) -> BatchStatus:
        now = self._clock.wall_us()
        before = self._kept(id).status(now)
        if before.ended:
            raise ModelFailure("bad_request", f"batch {id} has ended and cannot be canceled.", status=400, bought="no")
        self._shelf.cancel(id, now)
        return replace(before, status="canceling")

    async def batch_results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        if not self._kept(id).status(self._clock.wall_us()).ended:
            raise _not_found(f"batch {id} has not ended: it has no results yet")
        try:
            for line in self._shelf.lines(id):
                yield line_of(line)
        except KeyError:
            raise _not_found(f"the results of batch {id} are gone") from None

    def _kept(self, id: str) -> KeptBatch:
        try:
            return self._shelf.get(id)
        except KeyError:
            raise _not_found(f"there is no batch {id}") from None


def check_schemas(body: Wire) -> None:
    """Refuse what every provider would: a script answers whatever else it is asked."""
    if (problem := objection(body)) is not None:
        raise UsageError(problem)


def _check_body(body: Any) -> None:
    if not isinstance(body, dict):
        raise UsageError("params: Input should be a valid dictionary")
    for name in ("model", "messages"):
        if name not in body:
            raise UsageError(f"{name}: Field required")


def _not_found(problem: str) -> ModelFailure:
    return ModelFailure("not_found", f"{problem}.", status=404, code="not_found_error", bought="no")


class ScriptedModel(ScriptedBatches):
    """Plays a script, `pace` seconds between deltas; each call leaves a line in `witness` when sent and when done.

    A batch ends `batch_time` seconds after it was made. `batches` is the folder in which they are kept, for every
    process that is given the same one; none: one that all processes of this user share. Tests may give a shelf.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        pace: float = 0.0,
        witness: Path | None = None,
        ports: Ports | None = None,
        batch_time: float = 0.0,
        batches: Path | Shelf | None = None,
    ) -> None:
        super().__init__(
            Script.default() if script is None else script,
            witness=Witness(witness),
            ports=ports or Ports(),
            shelf=Spool(batches) if batches is None or isinstance(batches, Path) else batches,
            batch_time=batch_time,
        )
        self._pace = pace
        self._cache = PromptCache(self._clock)

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        body = request.body()
        about = {"call": request.call, "model": request.model, "hash": request_hash(body)}
        self.witness.write(event="sent", **about)
        try:
            check_schemas(body)
            events = to_events(self.turn(body, request.call), body, call=request.call, cache=self._cache)
        except UsageError as problem:
            self.witness.write(event="done", rejected=str(problem), **about)
            raise ModelFailure("bad_request", str(problem), bought="no") from problem
        answered(ResponseHead(request_id=f"req_{about['hash'][:24]}"))
        usage: Wire = {}
        for event in events:
            if self._pace and event["type"] == "content_block_delta":
                await self._clock.sleep(self._pace)
            if event["type"] == "message_start":
                usage = event["message"]["usage"]
            elif event["type"] == "message_delta":
                usage = {**usage, **event["usage"]}
            elif event["type"] == "message_stop":
                self.witness.write(event="done", usage=usage, **about)
            yield event

    async def count_tokens(self, request: Request) -> int:
        return count_tokens(request.body())

    async def close(self) -> None:
        self.witness.close()
