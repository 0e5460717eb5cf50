"""What really happened to errands, and the store's account compared with it.

A job that succeeded was done, by who held it. What was acknowledged is so. Each attempt has its reason: it was done, it
failed, it was handed back, or something happened to its worker, to a gateway or to the store.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.audit import Violation
from tests.support.snapshots import Row
from tests.support.virtual_time import WALL_EPOCH_US

STORE = "store"
AFTERMATH_S = 150.0  # how long a trouble may show


class Did(NamedTuple):
    """What a process did under an attempt."""

    by: str
    attempt: int


class Trouble(NamedTuple):
    who: str
    begun: float
    over: float


@dataclass
class Journal:
    """What really happened, whoever heard of it."""

    done: defaultdict[str, list[Did]] = field(default_factory=lambda: defaultdict(list))
    failed: defaultdict[str, list[Did]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: defaultdict[str, set[Did]] = field(default_factory=lambda: defaultdict(set))
    process_of: dict[int, str] = field(default_factory=dict)  # of each epoch of a worker
    troubles: list[Trouble] = field(default_factory=list)

    def note(self, who: str, now: float, seconds: float) -> None:
        self.troubles.append(Trouble(who, now, now + seconds + AFTERMATH_S))

    def judge(self, jobs: Iterable[Row], attempts: Mapping[int, list[Row]]) -> None:
        for job in jobs:
            mine = attempts.get(job["seq"], [])
            by = json.loads(job["result"] or "null")
            if job["state"] == "succeeded":
                self._was_done(job, by, mine)
            for did in self.acknowledged[job["id"]]:
                if job["state"] != "succeeded" or by != {**by, "by": did.by, "under": did.attempt}:
                    raise Violation("what was acknowledged is so", f"{did}, but it is {dict(job)}")
            for attempt in mine:
                self._has_a_reason(job, attempt)

    def _was_done(self, job: Row, by: dict[str, object] | None, attempts: list[Row]) -> None:
        if not self.done[job["id"]]:
            raise Violation("what succeeded was done", f"nobody did {dict(job)}")
        ended = [each for each in attempts if each["outcome"] == "succeeded"]
        if len(ended) != 1:
            raise Violation("none is applied twice", f"{[dict(each) for each in ended]} of {dict(job)}")
        holder = self.process_of[ended[0]["worker"]]
        if by is None or by["by"] != holder:
            raise Violation("who holds a job ends it", f"{holder} held what {by} ended: {dict(job)}")

    def _has_a_reason(self, job: Row, attempt: Row) -> None:
        process = self.process_of[attempt["worker"]]
        match attempt["outcome"]:
            case "succeeded":
                known = any(did.by == process for did in self.done[job["id"]])
            case "retried" | "failed":
                known = any(did.by == process for did in self.failed[job["id"]])
            case _:
                begun, over = ((attempt[name] - WALL_EPOCH_US) / 1e6 for name in ("started_at", "ended_at"))
                known = any(
                    trouble.begun < over
                    and begun < trouble.over
                    and (trouble.who == process or trouble.who.startswith(("g", STORE)))
                    for trouble in self.troubles
                )
        if not known:
            raise Violation("each attempt has its reason", f"{dict(attempt)} of {process}, job {dict(job)}")
