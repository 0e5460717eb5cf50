"""The server's side of one stream: it reads a client's messages, and sends the events of its turns.

It knows no transport: a server gives it a channel. A turn is never ended because its reader left, and a connection has
one turn at a time. A stream that is closed by the server bears a code that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Protocol, cast

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SessionBusy
from holdfast.facades.universal_agent import protocol, workspaces
from holdfast.facades.universal_agent.in_process import REPEATED_WITHIN
from holdfast.facades.universal_agent.protocol import (
    AgentEvent,
    BadMessage,
    BadRequest,
    CloseCode,
    EventType,
    GatewayRequest,
    GatewaySession,
    UnknownSession,
)

log = logging.getLogger("holdfast.gateway")

HEARTBEAT = 15.0  # seconds without an event after which a reader is told that its turn continues


class ClientChannel(Protocol):
    """A connection to one client, which it has asked for and nobody has accepted yet."""

    async def accept(self) -> None: ...

    async def receive(self) -> str | None:
        """The next message; None when the client has left."""

    async def send(self, text: str) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class ServedGateway(Protocol):
    """What a gateway must do to be served."""

    async def resume_session(self, session_id: str) -> GatewaySession: ...

    def execute(
        self, session: GatewaySession, request: GatewayRequest, *, repeated_within: timedelta | None = None
    ) -> AsyncIterator[AgentEvent]: ...

    async def cancel(self, session_id: str) -> int: ...

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool: ...


async def converse(
    gateway: ServedGateway, session_id: str, channel: ClientChannel, clock: Clock, *, heartbeat: float = HEARTBEAT
) -> None:
    """Serve one client until it leaves. Who may do so is the server's business, before this is called."""
    await channel.accept()
    if not workspaces.is_name(session_id):
        await channel.close(CloseCode.BAD_ID, "bad session id")
        return
    try:
        session = await gateway.resume_session(session_id)
    except UnknownSession:
        await channel.close(CloseCode.UNKNOWN, "unknown session")
        return
    await channel.send(protocol.message(protocol.CONNECTED, protocol.session_body(session)))
    await Conversation(gateway, session, channel, clock, heartbeat).run()


class Conversation:
    """One connection: a reader, and at most one turn beside it."""

    def __init__(
        self, gateway: ServedGateway, session: GatewaySession, channel: ClientChannel, clock: Clock, heartbeat: float
    ) -> None:
        self._gateway = gateway
        self._session = session
        self._channel = channel
        self._clock = clock
        self._heartbeat = heartbeat
        self._told_at = clock.monotonic()  # when the client was told something last
        self._turn: asyncio.Task[None] | None = None
        self._request: GatewayRequest | None = None

    async def run(self) -> None:
        try:
            while (text := await self._channel.receive()) is not None:
                await self._answer(text)
        except OSError:  # the client has left
            log.debug("a client of session %s has left", self._session.session_id)
        except Exception:  # the edge of a connection
            log.exception("a stream of session %s broke", self._session.session_id)
            await self._channel.close(CloseCode.INTERNAL, "internal error")
        finally:
            await self._leave()

    async def _answer(self, text: str) -> None:
        id = self._session.session_id
        try:
            said = protocol.read_client(text)
        except BadRequest as problem:
            await self._refuse(problem)
            return
        except BadMessage as problem:
            await self._tell(protocol.STATUS, status=protocol.BAD_MESSAGE, message=str(problem))
            return
        match said:
            case protocol.Execute(request=request):
                await self._begin(request)
            case protocol.CancelTurn():
                await self._tell(protocol.STATUS, status="cancelling", turns=await self._gateway.cancel(id))
            case protocol.InputResponse(input_id=input_id, response=response):
                accepted = await self._gateway.resolve_input(id, input_id, response)
                await self._tell("input_response", input_id=input_id, accepted=accepted)
            case protocol.Ping():
                await self._tell(protocol.PONG)

    async def _refuse(self, problem: BadRequest) -> None:
        """End a turn that could not begin as any turn ends; beside another turn that end would be taken for its own."""
        if self._turn is not None and not self._turn.done():
            await self._tell(protocol.STATUS, status=protocol.BAD_MESSAGE, message=str(problem))
            return
        await self._tell(protocol.ERROR, message=str(problem), code=type(problem).__name__)
        await self._tell(protocol.QUERY_COMPLETE, session_id=self._session.session_id)

    async def _begin(self, request: GatewayRequest) -> None:
        if self._turn is not None and not self._turn.done():
            same = (
                self._request is not None and request.turn_id is not None and request.turn_id == self._request.turn_id
            )
            status = "duplicate_in_progress" if same else protocol.BUSY
            await self._tell(protocol.STATUS, status=status, client_turn_id=request.turn_id)
            return
        self._request = request
        self._turn = asyncio.create_task(self._play(request), name="gateway turn")

    async def _play(self, request: GatewayRequest) -> None:
        """Send the events of a turn, and that it is complete."""
        try:
            await self._send_events(request)
        except OSError:
            return
        except SessionBusy as problem:
            await self._tell(
                protocol.STATUS, status=protocol.BUSY, client_turn_id=request.turn_id, message=str(problem)
            )
        except HoldfastError as problem:
            await self._tell(protocol.ERROR, message=str(problem), code=type(problem).__name__)
        except Exception:  # the edge of a turn: the reader must not wait for ever
            log.exception("a turn of session %s broke", self._session.session_id)
            await self._channel.close(CloseCode.INTERNAL, "internal error")
            return
        await self._tell(protocol.QUERY_COMPLETE, session_id=self._session.session_id, client_turn_id=request.turn_id)

    async def _send_events(self, request: GatewayRequest) -> None:
        """Every event as it comes, and a heartbeat while none does."""
        turn = self._gateway.execute(self._session, request, repeated_within=REPEATED_WITHIN)
        beating = asyncio.create_task(self._beat(), name="gateway heartbeat")
        try:
            async with aclosing(cast(Any, turn)) as events:
                async for event in events:
                    self._told_at = self._clock.monotonic()
                    await self._channel.send(protocol.message(event.type, event.data))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self) -> None:
        self._told_at = self._clock.monotonic()
        while True:
            left = self._told_at + self._heartbeat - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(left)
            else:
                await self._tell(EventType.HEARTBEAT, session_id=self._session.session_id)

    async def _tell(self, type: str, **data: object) -> None:
        self._told_at = self._clock.monotonic()
        await self._channel.send(protocol.message(type, data))

    async def _leave(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.gather(self._turn, return_exceptions=True)
