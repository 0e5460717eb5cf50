"""One call to the simulated provider about files."""

from __future__ import annotations

from holdfast.models.simulator.exchange import Exchange
from holdfast.models.simulator.refusal import RequestRefused

PATH = "/v1/files"


class FileExchange(Exchange):
    async def _route(self) -> None:
        request, state = self._request, self._state
        now = state.clock.wall_us()
        if (request.method, request.path) == ("POST", PATH):
            kept = state.cabinet.add(
                self._account, request.headers.get("content-type", ""), request.body, state.seed, now
            )
            await self._whole(kept.wire())
            return
        kept = state.cabinet.find(self._account, request.path.removeprefix(f"{PATH}/"), now)
        match request.method:
            case "GET":
                await self._whole(kept.wire())
            case "DELETE":
                await self._whole(state.cabinet.delete(kept))
            case _:
                raise RequestRefused("Method not allowed", status=405)
