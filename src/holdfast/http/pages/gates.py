"""Why work waits, all of it: how much is behind each gate, as one sample of the fleet says. Pure."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.http.live.sampler import Sample


class WaitingFor(NamedTuple):
    """What work waits for, how much of it, and where one sees more: `rule` is the route of the API that shows it."""

    words: str
    number: int
    path: str
    rule: str
    query: dict[str, str]


def gates(sample: Sample) -> list[WaitingFor]:
    """The same ones in the same order, so that nothing moves when a count becomes none."""
    ready = sum(each.pending for each in sample.queues if not each.paused_at)
    paused = sum(each.pending for each in sample.queues if each.paused_at)
    return [
        WaitingFor("a free slot of a worker" if sample.workers else "a worker: none is live", ready, *_WORKERS),
        WaitingFor("a queue that is paused", paused, *_QUEUES),
        WaitingFor("a lane that is full", sum(each.blocked for each in sample.queues), *_QUEUES),
        WaitingFor("a provider whose lane is closed", sum(sample.waiting_behind.values()), *_QUEUES),
        WaitingFor("a person", sample.inquiries, "/inbox", "GET /inquiries", {}),
        WaitingFor("its time, or what it started", sum(each.later for each in sample.queues), *_LATER),
    ]


_QUEUES: tuple[str, str, dict[str, str]] = ("/queues", "GET /queues", {})
_WORKERS: tuple[str, str, dict[str, str]] = ("/workers", "GET /workers", {})
_LATER: tuple[str, str, dict[str, str]] = ("/jobs", "GET /jobs", {"state": "scheduled"})
