"""Admission of turns: which request begins a turn, and which asks for one that is there.

A turn is a run that does not wait for another one of its session (`SessionBusy`), and its id is the run's key. So the
store decides, and two servers that are asked at once begin one turn.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from holdfast.agents.api.agent import Agent
from holdfast.agents.api.options import RunOptions
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.definition import Limits
from holdfast.app import Holdfast, core_of
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.gateway_values import GatewayRequest, GatewaySession
from holdfast.kernel import queries
from holdfast.values.times import moment

REPEATED_WITHIN = timedelta(seconds=120)  # the same input without an id, so soon, is the same turn

Admission = Literal["accepted", "duplicate_in_progress", "duplicate_completed"]


class Admitted(NamedTuple):
    run: Run[Any]
    status: Admission


class Admitting:
    """Admits turns to one session."""

    def __init__(self, app: Holdfast, session: GatewaySession, own: Session, tenant: str | None) -> None:
        self._app = app
        self._session = session
        self._own = own
        self._tenant = tenant

    async def admit(
        self, agent: Agent[Any], request: GatewayRequest, turn: str | None, repeated_within: timedelta | None
    ) -> Admitted:
        """The run of a turn; `SessionBusy` while another turn of the session is under way.

        A `turn` that is known is the same turn again. Without one, and if `repeated_within` is given, the session's
        newest turn is, if it is not older than that and had the same input.
        """
        said = _fingerprint(request)
        if turn is None and repeated_within is not None:
            turn = await self._repeated(said, repeated_within)
        options = self._options(agent, request)
        options["metadata"] = {"turn": {"said": said, "id": turn}}
        if turn is not None:
            options["key"] = f"universal_agent/{self._session.session_id}/{turn}"
        run = await agent.enqueue(request.user_input, **options)
        if run.fresh:
            return Admitted(run, "accepted")
        ended = (await run.refresh()).finalized_at is not None
        return Admitted(run, "duplicate_completed" if ended else "duplicate_in_progress")

    async def _repeated(self, said: str, within: timedelta) -> str:
        """An id for a turn that came without one: that of the newest turn, if this repeats it and it did not fail.

        A new one counts the turns before it, so that of two who ask at once the second repeats the first.
        """
        now = moment(await core_of(self._app).runtime().transact(queries.now))
        for newest in await self._own.runs(limit=1):
            before, lost = newest.metadata.get("turn", {}), newest.state in ("failed", "cancelled")
            if before.get("said") == said and before.get("id") and not lost and now - newest.created_at <= within:
                return str(before["id"])
        return f"said/{said}/{(await self._own.refresh()).runs}"

    def _options(self, agent: Agent[Any], request: GatewayRequest) -> RunOptions:
        options: RunOptions = {
            "session": self._own,
            "during": "reject",
            "variables": {"workspace_dir": self._session.workspace_dir, "session_id": self._session.session_id},
        }
        if self._tenant is not None:
            options["tenant"] = self._tenant
        limits = _limits(agent.spec.limits, request)
        if limits != agent.spec.limits:
            options["limits"] = limits
        return options


def _limits(limits: Limits, request: GatewayRequest) -> Limits:
    """The agent's limits, with those that the request has of its own."""
    most, seconds = request.metadata.get("max_turns"), request.metadata.get("turn_timeout_seconds")
    try:
        if most is not None:
            limits = replace(limits, turns=int(most))
        if seconds is not None:
            limits = replace(limits, time=f"{float(seconds)}s")
    except (TypeError, ValueError, OverflowError):
        raise UsageError("max_turns is a whole number, and turn_timeout_seconds a number.") from None
    return limits


def _fingerprint(request: GatewayRequest) -> str:
    asked = json.dumps([request.user_input, request.force_complex, request.metadata], sort_keys=True, default=str)
    return hashlib.sha256(asked.encode(errors="replace")).hexdigest()[:32]
