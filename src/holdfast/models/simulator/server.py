"""The server: connections in, an exchange for each call, and the paths by which a test looks behind the scenes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models.batches import errored
from holdfast.models.protocol import Wire
from holdfast.models.script import Script
from holdfast.models.simulator.batch_exchange import PATH, BatchExchange
from holdfast.models.simulator.batches import BatchedRequest, Bay, SimulatedBatch
from holdfast.models.simulator.exchange import Exchange
from holdfast.models.simulator.faults import refuse_media
from holdfast.models.simulator.files import Cabinet
from holdfast.models.simulator.http import Gone, HttpRequest, RequestRefused, SimulatorConnection, TooLarge, need
from holdfast.models.simulator.state import FaultRule, SimulatorState, chosen, read_rules, signing_key
from holdfast.models.simulator.strict import check_request
from holdfast.models.spool import Witness
from holdfast.models.steps import Rejected
from holdfast.models.wire import to_batch_message

# One call to the simulated provider about files.


FILES_PATH = "/v1/files"


class FileExchange(Exchange):
    async def _route(self) -> None:
        request, state = self._request, self._state
        now = state.clock.wall_us()
        if (request.method, request.path) == ("POST", FILES_PATH):
            kept = state.cabinet.add(
                self._account, request.headers.get("content-type", ""), request.body, state.seed, now
            )
            await self._whole(kept.wire())
            return
        kept = state.cabinet.find(self._account, request.path.removeprefix(f"{FILES_PATH}/"), now)
        match request.method:
            case "GET":
                await self._whole(kept.wire())
            case "DELETE":
                await self._whole(state.cabinet.delete(kept))
            case _:
                raise RequestRefused("Method not allowed", status=405)


# What becomes of a request in a batch: the script's answer, the refusal it would have met alone, or a rule's fault.


_NOT_IN_BATCHES = ("stream", "speed")


class BatchOutcomes:
    """Answers requests of batches, as the Messages API would answer them alone."""

    def __init__(self, script: Script, *, seed: int, key: str, cabinet: Cabinet) -> None:
        self._script, self._seed, self._key, self._cabinet = script, seed, key, cabinet

    def __call__(self, batch: SimulatedBatch, asked: BatchedRequest) -> Wire:
        for fault in ("error", "expire", "cancel"):
            if chosen(batch.do.get(fault), asked.number, f"{self._seed}/{fault}"):
                return _faulty(fault, batch.do[fault])
        try:
            return {"type": "succeeded", "message": self._message(batch, asked)}
        except RequestRefused as refused:
            return errored(refused.error)
        except Rejected as problem:
            return errored(RequestRefused(str(problem)).error)
        except UsageError as problem:  # the script's, which has run out
            return errored({"type": "api_error", "message": str(problem)})
        except Exception as problem:  # noqa: BLE001  # a request that breaks us, or the script, has a batch around it
            return errored({"type": "api_error", "message": f"Internal server error: {problem!r}"})

    def _message(self, batch: SimulatedBatch, asked: BatchedRequest) -> Wire:
        account, body = batch.account, asked.params
        facts = check_request(body, key=self._key, account=account)
        self._cabinet.check_references(body, account, batch.ends_us)
        for name in _NOT_IN_BATCHES:
            need(not body.get(name), f"{name}: not supported in a batch")
        refuse_media(body, batch.do)
        need(facts.batch, f"model: {body['model']} does not take batches")
        return to_batch_message(self._script.turn(body), body, asked.custom_id, key=self._key, account=account)


def _faulty(fault: str, which: Any) -> Wire:
    if fault != "error":
        return {"type": {"expire": "expired", "cancel": "canceled"}[fault]}
    says = which if isinstance(which, Mapping) else {}
    return errored({"type": says.get("type", "api_error"), "message": says.get("message", "failed by rule")})


class SimulatedProvider:
    """One simulated provider. `url` is where it listens, once started."""

    def __init__(
        self,
        *,
        seed: int = 0,
        rules: Iterable[FaultRule] = (),
        script: Script | None = None,
        witness: Path | None = None,
        pace: float = 0.0,
        batch_seconds: float = 0.0,
        ports: Ports | None = None,
    ) -> None:
        """A batch ends `batch_seconds` after it was made; there are `pace` seconds between the deltas of an answer."""
        self.url = ""
        script = Script.default() if script is None else script
        clock, lines = (ports or Ports()).clock, Witness(witness)
        cabinet = Cabinet()
        answer = BatchOutcomes(script, seed=seed, key=signing_key(seed), cabinet=cabinet)
        self.state = SimulatorState(
            seed=seed,
            script=script,
            rules=list(rules),
            witness=lines,
            clock=clock,
            pace=pace,
            bay=Bay(seed=seed, clock=clock, witness=lines, seconds=batch_seconds, answer=answer),
            cabinet=cabinet,
        )
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What the witness has written so far."""
        self.state.bay.settle()
        return list(self.state.witness.lines)

    @property
    def batches(self) -> list[dict[str, Any]]:
        """Every batch, with its custom ids and what became of them."""
        self.state.bay.settle()
        return self.state.bay.inside()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, host, port, limit=2**20, backlog=1024)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self.state.bay.settle()
        self.state.witness.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._serve(SimulatorConnection(reader, writer))
        except (Gone, asyncio.CancelledError):
            self.state.stats["connections dropped"] += 1
        finally:
            self._open.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, connection: SimulatorConnection) -> None:
        while not connection.closing:
            try:
                request = await connection.receive()
            except TooLarge:
                refused = RequestRefused("Request exceeds the maximum size", status=413, type="request_too_large")
                await self.state.refuse(connection, refused, self.state.headers("too large"))
                await connection.discard()
                return
            if request is None:
                return
            self.state.stats["requests"] += 1
            self.state.bay.settle()
            if request.path.startswith("/_"):
                await self._administer(connection, request)
            elif request.path.startswith(PATH):
                await BatchExchange(self.state, connection, request).run()
            elif request.path.startswith(FILES_PATH):
                await FileExchange(self.state, connection, request).run()
            else:
                await Exchange(self.state, connection, request).run()

    async def _administer(self, connection: SimulatorConnection, request: HttpRequest) -> None:
        state = self.state
        match request.method, request.path:
            case "POST", "/_rules":
                try:
                    state.rules = read_rules(json.loads(request.body or b"[]"))
                except (UsageError, ValueError) as problem:
                    await state.refuse(connection, RequestRefused(str(problem)), {})
                    return
                await connection.answer(200, {"rules": len(state.rules)}, {})
            case "GET", "/_witness":
                await connection.answer(200, self.lines, {})
            case "GET", "/_batches":
                await connection.answer(200, self.batches, {})
            case "GET", "/_stats":
                await connection.answer(200, dict(state.stats), {})
            case _:
                await state.refuse(connection, RequestRefused("Not found", status=404, type="not_found_error"), {})


@asynccontextmanager
async def simulator(
    *,
    seed: int = 0,
    rules: Any = (),
    script: Script | None = None,
    witness: Path | None = None,
    pace: float = 0.0,
    batch_seconds: float = 0.0,
    ports: Ports | None = None,
) -> AsyncIterator[SimulatedProvider]:
    """A provider in this process, listening on loopback. `rules` are JSON, as in `--rules`."""
    running = SimulatedProvider(
        seed=seed,
        rules=read_rules(rules),
        script=script,
        witness=witness,
        pace=pace,
        batch_seconds=batch_seconds,
        ports=ports,
    )
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def provider(
    *,
    seed: int = 0,
    rules: Any = (),
    script: Script | None = None,
    witness: Path | None = None,
    pace: float = 0.0,
    batch_seconds: float = 0.0,
    ports: Ports | None = None,
) -> AsyncIterator[str]:
    """`simulator` for who needs its URL alone."""
    async with simulator(
        seed=seed, rules=rules, script=script, witness=witness, pace=pace, batch_seconds=batch_seconds, ports=ports
    ) as running:
        yield running.url
