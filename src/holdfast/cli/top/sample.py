"""What `top` shows, as the store has it at one moment, and how fast each queue has moved lately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.agents.activity import agent_activity, open_inquiries
from holdfast.agents.activity_rows import AgentActivity, OpenInquiries
from holdfast.agents.lane_rows import ClosedLane
from holdfast.agents.lanes import list_lanes as closed_lanes
from holdfast.app import Holdfast, core_of
from holdfast.kernel import queries, watch
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.flow_rows import LaneRow
from holdfast.kernel.queues import QueueStats, list_lanes, queue_stats
from holdfast.kernel.rows import DutyRow
from holdfast.kernel.watch_rows import Change
from holdfast.kernel.workers import absent_workers, list_duties, list_workers

BUCKET_US = 5_000_000
BUCKETS = 60
_RECOUNTED = 2  # who commits late has an earlier time
_FAILURES = 50
_FIRST_LOOK_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class StoreSample:
    """The store at one moment."""

    database: str
    schema: str
    epoch: int
    now: int
    queues: Sequence[QueueStats] = ()
    workers: Sequence[WorkerRow] = ()
    duties: Sequence[DutyRow] = ()
    lanes: Sequence[LaneRow] = ()
    closed: Sequence[ClosedLane] = ()
    failures: Sequence[Change] = ()
    agents: Sequence[AgentActivity] = ()
    inquiries: OpenInquiries = field(default_factory=OpenInquiries)
    history: dict[str, list[int]] = field(default_factory=dict)  # ended jobs by queue, in spans of 5 s, oldest first


class StoreSampler:
    """Asks the store; remembers what need not be asked again."""

    def __init__(self, app: Holdfast, database: str, schema: str) -> None:
        self._app = app
        self._database = database
        self._schema = schema
        self._counts: dict[int, dict[str, int]] = {}
        self._failures: dict[int, Change] = {}
        self._failed_since: int | None = None

    async def sample(self) -> StoreSample:
        database = core_of(self._app).runtime().database
        now = await database.transact(queries.now)
        await self._count(now)
        await self._find_failures(now)
        return StoreSample(
            database=self._database,
            schema=self._schema,
            epoch=await database.transact(watch.cluster_epoch),
            now=now,
            queues=await database.transact(queue_stats),
            workers=await database.transact(list_workers, all=False, limit=200, absent=await absent_workers(database)),
            duties=await database.transact(list_duties),
            lanes=[lane for lane in await database.transact(list_lanes) if lane.blocked],
            closed=await database.transact(closed_lanes),
            agents=await database.transact(agent_activity),
            inquiries=await database.transact(open_inquiries),
            failures=sorted(self._failures.values(), key=lambda change: -change.at),
            history=self._history(now),
        )

    async def _count(self, now: int) -> None:
        latest = now // BUCKET_US
        wanted = [
            bucket
            for bucket in range(latest - BUCKETS + 1, latest + 1)
            if bucket not in self._counts or bucket >= latest - _RECOUNTED
        ]
        spans = [(bucket * BUCKET_US, (bucket + 1) * BUCKET_US) for bucket in wanted]
        counted = await core_of(self._app).runtime().database.transact(watch.ended, spans)
        self._counts.update(zip(wanted, counted, strict=True))
        self._counts = {bucket: count for bucket, count in self._counts.items() if bucket > latest - BUCKETS}

    async def _find_failures(self, now: int) -> None:
        since = now - _FIRST_LOOK_US if self._failed_since is None else self._failed_since
        found = await core_of(self._app).runtime().database.transact(watch.failures, since=since, limit=_FAILURES)
        self._failed_since = now - BUCKET_US
        self._failures.update({change.seq: change for change in found})
        newest = sorted(self._failures.values(), key=lambda change: -change.at)[:_FAILURES]
        self._failures = {change.seq: change for change in newest}

    def _history(self, now: int) -> dict[str, list[int]]:
        latest = now // BUCKET_US
        names = {name for counts in self._counts.values() for name in counts}
        buckets = range(latest - BUCKETS + 1, latest)  # the last one is not over yet
        return {name: [self._counts.get(bucket, {}).get(name, 0) for bucket in buckets] for name in names}
