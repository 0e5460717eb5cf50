"""Routes: what a job requires, as a number that an index can serve.

A route is a queue and a sorted set of capabilities. Its id is a hash of them, so nobody hands numbers out; the
table only lets workers learn which routes exist. Matching is done here, claiming by the index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable

from holdfast.kernel.codec import check_text
from holdfast.kernel.rows import Route

ANY_JOB = "job:*"  # offered by those who take jobs of every kind, but for kinds that are capabilities by themselves
LANE = "lane"  # required by every route whose jobs have lanes; workers that know of lanes have it, older ones do not


def capability_of(kind: str) -> str:
    """What a worker must offer to run this kind; every job requires it. A kind may be a capability by itself."""
    return kind if ":" in kind else f"job:{kind}"


def route_for(queue: str, kind: str, requires: Iterable[str] = (), *, laned: bool = False) -> Route:
    """The route of a job. `requires` must be drawn from a bounded set: never a tenant or a user."""
    check_text(queue, what="a queue name")
    needed = sorted(
        {capability_of(kind), *(check_text(r, what="a capability") for r in requires)} | ({LANE} if laned else set())
    )
    capabilities = json.dumps(needed, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(f"{queue}\x1f{capabilities}".encode()).digest()
    return Route(int.from_bytes(digest[:8], "big") >> 1, queue, capabilities)


def serves(route: Route, queues: Collection[str] | None, capabilities: Collection[str]) -> bool:
    """Can a worker with these queues (None: every queue) and capabilities run jobs on this route?"""
    if queues is not None and route.queue not in queues:
        return False
    return all(needed == LANE or offers(capabilities, needed) for needed in json.loads(route.capabilities))


def offers(capabilities: Collection[str], needed: str) -> bool:
    """Does a worker with these capabilities have the one that is needed?"""
    return needed in capabilities or (ANY_JOB in capabilities and needed.startswith("job:"))


def is_laned(route: Route) -> bool:
    return LANE in json.loads(route.capabilities)
