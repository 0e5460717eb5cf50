"""What a reader of the fleet wants to hear of: an agent, a session, one run, or a run and all runs below it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.agents.events.topics import TopicEvent
from holdfast.agents.values.runs import RunRecord
from holdfast.errors import NotFound

_REMEMBERED = 10_000  # runs that one reader knows


@dataclass(frozen=True, slots=True)
class RunLinks:
    """What a run belongs to."""

    agents: frozenset[str]  # its agent's id and name
    session: str
    root: str


_NOTHING = RunLinks(frozenset(), "", "")


class EventFilter:
    """Not every topic says what its run belongs to: then the run is looked up, once."""

    def __init__(
        self,
        look: Callable[[str], Awaitable[RunRecord]],
        *,
        agent: str | None = None,
        session: str | None = None,
        run: str | None = None,
        root: str | None = None,
    ) -> None:
        self._look = look
        self._agent = agent
        self._session = session
        self._run = run
        self._root = root
        self._known: dict[str, RunLinks] = {}

    async def fits(self, event: TopicEvent) -> bool:
        if self._run not in (None, event.run):
            return False
        if self._session is not None and event.payload.get("session_id", self._session) != self._session:
            return False
        if (self._agent, self._session, self._root) == (None, None, None):
            return True
        about = await self._about(event)
        return (
            (self._agent is None or self._agent in about.agents)
            and self._session in (None, about.session)
            and self._root in (None, about.root)
        )

    async def _about(self, event: TopicEvent) -> RunLinks:
        known = self._known.get(event.run)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[event.run] = await self._found(event)
        return known

    async def _found(self, event: TopicEvent) -> RunLinks:
        said = event.payload
        if event.topic == "run_created" and said.get("parent_run_id") is None:
            return RunLinks(frozenset({said["agent_id"], said["agent_name"]}), said["session_id"], event.run)
        try:
            run = await self._look(event.run)
        except NotFound:
            return _NOTHING
        return RunLinks(frozenset({run.agent, run.agent_name}), run.session, run.root)
