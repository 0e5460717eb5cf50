"""The model of a lab: it plays the script, and remembers what it was asked and what did not fit.

Its batches are in memory, beside the lab's workers: they outlive any of them, as those of a provider do.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Ports
from holdfast.models.expectations import Unexpected
from holdfast.models.protocol import Wire
from holdfast.models.request_view import Heard
from holdfast.models.script import Script, ScriptedTurn
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import MemoryShelf
from holdfast.testing.bought import turn_of


class LabModel(ScriptedModel):
    """Answers for every model of an app. `agent_of` says which agent a run is of."""

    def __init__(self, script: Script, *, ports: Ports, agent_of: Callable[[str], str]) -> None:
        super().__init__(script, ports=ports, batches=MemoryShelf())
        self.asked: list[Heard] = []
        self._agent_of = agent_of
        self._misfits: list[str] = []

    def turn(self, body: Wire, call: str) -> ScriptedTurn:
        run, number = turn_of(call) or (call.partition("/")[0], 0)
        heard = Heard(body, run, number, self._agent_of(run))
        self.asked.append(heard)
        try:
            return self._script.for_agent(heard.agent).turn(body)
        except Unexpected as problem:
            whose = f"agent {heard.agent} (run {run}, turn {number})" if heard.agent else f"call {call}"
            self._misfits.append(f"the model of {whose} was asked something that its script does not expect: {problem}")
            raise

    def require_expected(self) -> None:
        """`AssertionError`, once, when a request did not fit what the script expects."""
        __tracebackhide__ = True
        misfits, self._misfits = self._misfits, []
        if misfits:
            more = f"\n\n{len(misfits) - 1} more did not fit." if len(misfits) > 1 else ""
            raise AssertionError(misfits[0] + more)
