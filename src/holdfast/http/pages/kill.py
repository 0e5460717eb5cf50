"""The button that kills a worker with -9. It is there only where a demo serves pages, for processes that it started."""

from __future__ import annotations

from starlette.requests import Request

from holdfast.http.api.fleet import show_worker
from holdfast.http.api.seen import Sight
from holdfast.http.pages.routes import Go, Pages
from holdfast.http.security.gate import Doomed

pages = Pages()


@pages.action("/workers/{id}/kill", like="POST /workers/{id}/drain")
async def kill_worker(seen: Sight, request: Request, id: str) -> Go:
    doomed: Doomed = request.state.doomed
    doomed.kill((await show_worker(seen, id)).pid)
    return Go("/workers")
