"""The SQL files as Python sees them: a name, how many rows, and the record each row becomes.

Each file of `kernel/sql` has a module of its name here, which declares its group.
"""

from __future__ import annotations

from holdfast.kernel.sql import Statements
from holdfast.kernel.statements.brokers import BrokersSql as BrokersSql
from holdfast.kernel.statements.cancel import CancelSql as CancelSql
from holdfast.kernel.statements.crowd import CrowdSql as CrowdSql
from holdfast.kernel.statements.enqueue import EnqueueSql as EnqueueSql
from holdfast.kernel.statements.jobs import JobsSql as JobsSql
from holdfast.kernel.statements.lanes import LanesSql as LanesSql
from holdfast.kernel.statements.leases import LeasesSql as LeasesSql
from holdfast.kernel.statements.listing import ListingSql as ListingSql
from holdfast.kernel.statements.pools import PoolsSql as PoolsSql
from holdfast.kernel.statements.queues import QueuesSql as QueuesSql
from holdfast.kernel.statements.retention import RetentionSql as RetentionSql
from holdfast.kernel.statements.schedules import SchedulesSql as SchedulesSql
from holdfast.kernel.statements.tally import TallySql as TallySql
from holdfast.kernel.statements.waiting import WaitingSql as WaitingSql
from holdfast.kernel.statements.watch import WatchSql as WatchSql
from holdfast.kernel.statements.why import WhySql as WhySql
from holdfast.kernel.statements.workers import WorkersSql as WorkersSql

GROUPS: tuple[type[Statements], ...] = (
    BrokersSql,
    CancelSql,
    CrowdSql,
    EnqueueSql,
    JobsSql,
    LanesSql,
    LeasesSql,
    ListingSql,
    PoolsSql,
    QueuesSql,
    RetentionSql,
    SchedulesSql,
    TallySql,
    WaitingSql,
    WatchSql,
    WhySql,
    WorkersSql,
)
