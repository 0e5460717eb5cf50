"""What handles a run when a pool is given no handler: one turn of a gateway, in the run's workspace.

The turn is named by the run's job, so a worker that takes the run over finds the turn again, and does not ask it twice.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.errors import UsageError
from holdfast.facades.universal_agent import handlers
from holdfast.facades.universal_agent.external import ExternalGateway
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.facades.universal_agent.protocol import BadName, Data, GatewayRequest, GatewaySession

log = logging.getLogger("holdfast.universal_agent")


async def handle_by_gateway(run_id: str, workspace_dir: str, gateway_url: str | None, token: str | None) -> bool:
    """Run the prompt as the session user `worker_<run_id>`; whether the turn had no error."""
    handled = handlers.current()
    if handled is None:
        raise UsageError("this handler runs inside a worker, which says what run it handles.")
    gateway = ExternalGateway(base_url=gateway_url, token=token) if gateway_url else InProcessGateway()
    run = await handled.runtime.runs.get(run_id)
    prompt = "" if run is None else run["last_job_prompt"]
    session = await _open(gateway, run_id, workspace_dir)
    metadata: Data = {"client_turn_id": handled.turn_id(session.session_id, prompt), "run_kind": "worker_pool"}
    if handled.max_iterations is not None:
        metadata["max_turns"] = handled.max_iterations
    try:
        result = await gateway.run_query(session, GatewayRequest(user_input=prompt, metadata=metadata))
    except asyncio.CancelledError:
        if await handled.runtime.runs.is_cancel_requested(run_id):
            await _cancel(gateway, session)
        raise
    if not result.success:
        log.warning("run %s failed: %s", run_id, "; ".join(result.metadata["errors"]), extra={"run": run_id})
    return result.success


async def _open(gateway: InProcessGateway | ExternalGateway, run_id: str, workspace_dir: str) -> GatewaySession:
    """The run's session, in its workspace. A gateway elsewhere may take no folder that a client names: then the session
    has the run's id, and the folder that the gateway gives it."""
    user = f"worker_{run_id}"
    try:
        return await gateway.create_session(user_id=user, workspace_dir=workspace_dir)
    except BadName:
        if isinstance(gateway, InProcessGateway):
            raise
    session = await gateway.create_session(user_id=user, session_id=run_id)
    log.warning("run %s: the gateway keeps its workspace, in %s", run_id, session.workspace_dir, extra={"run": run_id})
    return session


async def _cancel(gateway: InProcessGateway | ExternalGateway, session: GatewaySession) -> None:
    """End the turn of a run that was cancelled. When its lease was lost instead, the turn is its successor's."""
    await gateway.cancel(session.session_id)
