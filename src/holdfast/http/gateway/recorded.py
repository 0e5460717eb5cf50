"""A gateway whose changes are written into the audit: what a WebSocket asks for is a change as any other."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Any, TypeVar, cast

from holdfast.access.audit import Audit
from holdfast.access.principals import Principal
from holdfast.changes import unnoted
from holdfast.errors import HoldfastError
from holdfast.facades.universal_agent.gateway_values import AgentEvent, GatewayRequest, GatewaySession
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.http.api.problems import status_of

T = TypeVar("T")


class RecordedGateway:
    def __init__(self, gateway: InProcessGateway, audit: Audit, by: Principal, path: str) -> None:
        self._gateway = gateway
        self._audit = audit
        self._by = by
        self._path = path

    async def resume_session(self, session_id: str) -> GatewaySession:
        return await self._gateway.resume_session(session_id)

    async def execute(
        self, session: GatewaySession, request: GatewayRequest, *, repeated_within: timedelta | None = None
    ) -> AsyncIterator[AgentEvent]:
        """The turn; its outcome in the audit is whether it was admitted."""
        said = hashlib.sha256(request.user_input.encode(errors="replace")).hexdigest()
        turn = self._gateway.execute(session, request, repeated_within=repeated_within)
        async with aclosing(cast(Any, turn)) as events:

            async def begin() -> AgentEvent:
                return cast(AgentEvent, await anext(events))

            yield await self._recorded("execute", begin, {"sha256": said, "client_turn_id": request.turn_id})
            async for event in events:
                yield event

    async def cancel(self, session_id: str) -> int:
        return await self._recorded("cancel", lambda: self._gateway.cancel(session_id), {})

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool:
        def resolve() -> Awaitable[bool]:
            return self._gateway.resolve_input(session_id, input_id, response)

        return await self._recorded("input_response", resolve, {"input_id": input_id})

    async def _recorded(self, message: str, change: Callable[[], Awaitable[T]], detail: Mapping[str, Any]) -> T:
        action = f"WS {message}"
        intent = await self._audit.add(self._by, action, self._path, phase="intent", detail=detail)
        status = 500
        try:
            with unnoted():
                result = await change()
            status = 200
        except HoldfastError as problem:
            status = status_of(problem)
            raise
        finally:
            await self._audit.add(self._by, action, self._path, phase="outcome", about=intent, status=status)
        return result
