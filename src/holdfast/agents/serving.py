"""Serving agents that this program does not define: any stored one all of whose tools it has, without a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import checking
from holdfast.agents.definitions import AGENT_KIND, TOOL_KIND, AgentSpec
from holdfast.agents.reading import current_definitions
from holdfast.kernel.database import Database
from holdfast.kernel.records import Route
from holdfast.kernel.retry import RetryPolicy
from holdfast.workers.definitions import Definition, Registry
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import RUNS


class Serving:
    def __init__(
        self, registry: Registry, play: Callable[..., Any], compacting: Definition, beside: Callable[[], None]
    ) -> None:
        """`beside` declares what is served with every agent; `compacting` where its sessions are compacted, too."""
        self._registry = registry
        self._play = play
        self._compacting = compacting
        self._beside = beside

    async def adopt(self, database: Database, routes: Iterable[Route]) -> list[str]:
        """Definitions for agents that these routes ask for and this program can serve; returns their capabilities."""
        wanted = {
            capability
            for route in routes
            for capability in json.loads(route.capabilities)
            if capability.startswith(AGENT_KIND) and capability not in self._registry.definitions
        }
        tools = {kind.removeprefix(TOOL_KIND) for kind in self._registry.definitions if kind.startswith(TOOL_KIND)}
        if not wanted or not self._registry.adopts:
            return []
        names = sorted(kind.removeprefix(AGENT_KIND) for kind in wanted)
        before = set(self._registry.definitions)
        for row in await database.transact(current_definitions, names):
            spec = AgentSpec.parse(row.definition)
            if {tool.name for tool in spec.tools} <= tools and spec.kind not in self._registry.definitions:
                self._registry.add(
                    run_definition(
                        spec.name, self._play, queue=spec.queue, requires=spec.requires, priority=spec.priority
                    )
                )
                self._beside()
                if spec.compaction is not None:
                    self._registry.add(self._compacting)
        return sorted(self._registry.definitions.keys() - before)


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
        requires=checking.capabilities(requires),
        retry=RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=priority,
        isolate=None,
        line=RUNS,
    )
