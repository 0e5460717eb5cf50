"""An ASGI app around another one, which cuts off its WebSockets: a network that fails."""

from __future__ import annotations

from holdfast.asgi import AsgiApp, Receive, Scope, Send


class Cutting:
    """`leave_after`: after how many messages of the server streams are cut off."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.leave_after: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = self.leave_after

        async def sent(message: Scope) -> None:
            nonlocal left
            if left is not None and message["type"] == "websocket.send":
                left -= 1
                if left < 0:
                    await send({"type": "websocket.close", "code": 1012, "reason": "restarting"})
                    raise OSError("cut by the test")
            await send(message)

        await self._app(scope, receive, sent)
