"""The statements of `schedules.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import ScheduleRow, Tick
from holdfast.kernel.sql import Exec, Many, One, Statements


class SchedulesSql(Statements, file="schedules.sql"):
    put_schedule: Exec
    due_schedules: Many[ScheduleRow]
    list_schedules: Many[ScheduleRow]
    find_schedule: One[ScheduleRow]
    advance_schedule: One[Tick]
    postpone_schedule: One[Tick]
    pause_schedule: One[Tick]
    resume_schedule: One[Tick]
    delete_schedule: One[Tick]
