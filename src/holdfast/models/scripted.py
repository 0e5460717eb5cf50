"""The `scripted:` model: a script in this process, without key, network or price."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models.failures import ModelFailure
from holdfast.models.prompt_cache import PromptCache
from holdfast.models.protocol import Answered, Request, Wire, request_hash
from holdfast.models.script import Script
from holdfast.models.scripted_batches import ScriptedBatches, check_schemas
from holdfast.models.spool import Shelf, Spool
from holdfast.models.wire import count_tokens, to_events
from holdfast.models.witness import Witness


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

    async def stream(self, request: Request, answered: Callable[[Answered], None]) -> AsyncGenerator[Wire, None]:
        body = request.body()
        about = {"call": request.call, "model": request.model, "hash": request_hash(body)}
        self.witness.write(event="sent", **about)
        try:
            check_schemas(body)
            events = to_events(self.turn(body, request.call), body, call=request.call, cache=self._cache)
        except UsageError as problem:
            self.witness.write(event="done", rejected=str(problem), **about)
            raise ModelFailure("bad_request", str(problem), bought="no") from problem
        answered(Answered(request_id=f"req_{about['hash'][:24]}"))
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
