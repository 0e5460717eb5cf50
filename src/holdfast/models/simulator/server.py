"""The server: connections in, an exchange for each call, and the paths by which a test looks behind the scenes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models.script import Script
from holdfast.models.simulator.batch_exchange import PATH, BatchExchange
from holdfast.models.simulator.batches import Bay
from holdfast.models.simulator.exchange import Exchange
from holdfast.models.simulator.file_exchange import PATH as FILES
from holdfast.models.simulator.file_exchange import FileExchange
from holdfast.models.simulator.files import Cabinet
from holdfast.models.simulator.http import Gone, HttpRequest, SimulatorConnection, TooLarge
from holdfast.models.simulator.outcomes import BatchOutcomes
from holdfast.models.simulator.refusal import RequestRefused
from holdfast.models.simulator.rules import FaultRule, read_rules
from holdfast.models.simulator.state import SimulatorState, signing_key
from holdfast.models.witness import Witness


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
            elif request.path.startswith(FILES):
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
