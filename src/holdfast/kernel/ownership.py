"""Ownership: which layer of the runtime a job belongs to. A job without one is a program's own.

The layer is written with the job, and owns its kind: no program can declare a job under such a kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import UsageError
from holdfast.kernel.database import Owner
from holdfast.kernel.rows import NewJob


def owner_of(kind: str, layers: Iterable[Owner]) -> str | None:
    """The layer that owns jobs of this kind."""
    return next((each.name for each in layers if kind.startswith(each.kinds)), None)


def check_owned(jobs: Iterable[NewJob], layers: Iterable[Owner]) -> None:
    """Refuse a job whose layer does not own its kind. The kernel tells the layer of a job's end by the job's kind."""
    kinds = {each.name: each.kinds for each in layers}
    for job in jobs:
        if job.layer in kinds and not job.kind.startswith(kinds[job.layer]):
            begin = " or ".join(map(repr, kinds[job.layer]))
            raise UsageError(f"job {job.kind!r} cannot be enqueued for {job.layer}, whose kinds begin with {begin}.")


def retry_advice(layer: str, layers: Iterable[Owner]) -> str:
    """What to do instead of enqueuing a job of this layer again."""
    known = (each.retry_advice for each in layers if each.name == layer)
    return next(known, f"Enqueue it again through {layer}.")


def cancel_advice(layers: Iterable[Owner]) -> dict[str, str]:
    """The kinds of jobs that nobody cancels by hand, each with what to do instead."""
    return {kind: advice for each in layers for kind, advice in each.cancel_advice.items()}
