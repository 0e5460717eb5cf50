"""Writing: what the store is told of an outcome, within the caps of the job's definition."""

from __future__ import annotations

import random

from holdfast.errors import BadPayload
from holdfast.kernel.complete import ending
from holdfast.kernel.records import Ending, Lease
from holdfast.kernel.retry import RetryPolicy
from holdfast.outcomes import Cancel, Discard, Done, Fail, Retry, Snooze
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition
from holdfast.workers.slots import TOOLS

_NO_POLICY = RetryPolicy()


class Writing:
    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self._chance = chance
        self._caps = settings.result_cap, settings.error_cap
        self._shown_caps = settings.prompt_cap, settings.error_cap

    def ending(
        self, lease: Lease, outcome: Done | Retry | Fail | Cancel | Discard | Snooze, definition: Definition | None
    ) -> Ending:
        """How the attempt ends; as a failure, when its result cannot be stored."""
        policy, caps = _NO_POLICY, self._caps
        if definition is not None:
            policy = definition.retry
            if definition.line == TOOLS:  # shown to a model, so it may hold images and documents
                caps = self._shown_caps
        try:
            return ending(lease, outcome, policy, self._chance, *caps)
        except BadPayload as problem:
            return ending(lease, Fail(str(problem), "result_error"), policy, self._chance, *caps)
