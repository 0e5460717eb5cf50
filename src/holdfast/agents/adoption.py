"""Adoption of agents that this program does not define: any stored one all of whose tools it has, without a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import validation
from holdfast.agents.definition import AGENT_KIND, LAYER, TOOL_KIND, AgentSpec
from holdfast.agents.keys import Keys
from holdfast.agents.queries import current_definitions
from holdfast.agents.rows import VersionRow
from holdfast.agents.runs.create import needs_of
from holdfast.agents.system_jobs import RUNS
from holdfast.errors import NotUnderstood
from holdfast.kernel.database import Database
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Route
from holdfast.text import shown
from holdfast.workers.definitions import Definition, Registry
from holdfast.workers.signatures import Signature

log = logging.getLogger("holdfast.agents")


class ServedAgents:
    def __init__(
        self,
        registry: Registry,
        play: Callable[..., Any],
        compacting: Definition,
        beside: Callable[[], None],
        keys: Keys,
    ) -> None:
        """`beside` declares what is served with every agent; `compacting` how its sessions are compacted."""
        self._registry = registry
        self._play = play
        self._compacting = compacting
        self._beside = beside
        self._keys = keys
        self._reported: set[str] = set()  # the definitions that were not understood

    async def adopt(self, database: Database, routes: Iterable[Route]) -> None:
        """Add definitions for agents that these routes ask for and this program can serve.

        An agent whose definition cannot be understood is logged once, and left alone.
        """
        wanted = self._wanted(routes)
        if not wanted:
            return
        mine = {kind for kind in self._registry.definitions if kind.startswith(TOOL_KIND)}
        for row in await database.transact(current_definitions, sorted(wanted)):
            spec = self._understood(row)
            if spec is not None and _can_serve(spec, wanted.get(spec.name, []), mine) and self._keys.may_adopt(spec):
                self._serve(spec)

    def _wanted(self, routes: Iterable[Route]) -> dict[str, list[set[str]]]:
        """The agents that are not served here yet, by name, and for each of their routes the tools that it names."""
        wanted: dict[str, list[set[str]]] = {}
        for route in routes:
            needed = json.loads(route.capabilities)
            for kind in needed:
                if kind.startswith(AGENT_KIND) and kind not in self._registry.definitions:
                    tools = {each for each in needed if each.startswith(TOOL_KIND)}
                    wanted.setdefault(kind.removeprefix(AGENT_KIND), []).append(tools)
        return wanted

    def _understood(self, row: VersionRow) -> AgentSpec | None:
        try:
            return AgentSpec.parse(row.definition)
        except NotUnderstood as problem:
            if row.digest not in self._reported:
                self._reported.add(row.digest)
                log.warning("agent %s is left to other workers: %s", shown(row.agent), shown(problem))
            return None

    def _serve(self, spec: AgentSpec) -> None:
        if spec.kind not in self._registry.definitions:
            self._keys.note(spec.kind, spec.model)
            play, queue, requires = self._play, spec.queue, spec.requires
            self._registry.add(run_definition(spec.name, play, queue=queue, requires=requires, priority=spec.priority))
            self._beside()
            self._registry.add(self._compacting)


def _can_serve(spec: AgentSpec, named: Iterable[set[str]], mine: set[str]) -> bool:
    """By the tools that a route of its runs names. For one that names none, the definition tells."""
    return any(tools <= mine if tools else mine.issuperset(needs_of(spec)) for tools in named)


def run_definition(
    name: str, play: Callable[..., Any], *, queue: str, requires: Iterable[str], priority: int
) -> Definition:
    """How the runs of an agent are claimed and played."""
    kind = AGENT_KIND + name
    return Definition(
        kind=kind,
        function=play,
        signature=Signature(kind, play),
        queue=queue,
        requires=validation.capabilities(requires),
        retry=RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=priority,
        isolate=None,
        slots=RUNS.name,
        layer=LAYER,
    )
