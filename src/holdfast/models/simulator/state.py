"""What a simulated provider is at a moment: how it answers, and what it has seen."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from holdfast.clock import Clock
from holdfast.models.prompt_cache import PromptCache
from holdfast.models.script import Script
from holdfast.models.simulator.batches import Bay
from holdfast.models.simulator.files import Cabinet
from holdfast.models.simulator.http import SimulatorConnection
from holdfast.models.simulator.refusal import RequestRefused
from holdfast.models.simulator.rules import FaultRule
from holdfast.models.witness import Witness

_LINES = ("requests", "tokens", "input-tokens", "output-tokens")


def signing_key(seed: int) -> str:
    """What thinking is signed with."""
    return f"provider/{seed}"


@dataclass(slots=True)
class SimulatorState:
    seed: int
    script: Script
    rules: list[FaultRule]
    witness: Witness
    clock: Clock
    pace: float
    bay: Bay
    calls: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    cabinet: Cabinet = field(default_factory=Cabinet)
    cache: PromptCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = PromptCache(self.clock)

    @property
    def key(self) -> str:
        return signing_key(self.seed)

    def headers(self, number: object) -> dict[str, str]:
        """What every response to call `number` says."""
        id = hashlib.sha256(f"{self.seed}/{number}".encode()).hexdigest()[:24]
        reset = datetime.fromtimestamp(self.clock.wall_us() // 1_000_000, UTC) + timedelta(minutes=1)
        limits = {"limit": "4000", "remaining": "3999", "reset": reset.isoformat().replace("+00:00", "Z")}
        return {
            "request-id": f"req_{id}",
            "anthropic-organization-id": "org_simulated",
            **{f"anthropic-ratelimit-{line}-{name}": value for line in _LINES for name, value in limits.items()},
        }

    async def refuse(
        self, connection: SimulatorConnection, refused: RequestRefused, headers: Mapping[str, str]
    ) -> None:
        self.stats[f"status {refused.status}"] += 1
        body = {"type": "error", "error": refused.error, "request_id": headers.get("request-id")}
        await connection.answer(refused.status, body, {**headers, **refused.headers})
