"""The statements of `why.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import Candidate, LaneCrowd, WhyJob
from holdfast.kernel.rows import RouteId
from holdfast.kernel.sql import Many, One, Statements


class WhySql(Statements, file="why.sql"):
    why_job: One[WhyJob]
    lane_line: Many[Candidate]
    lane_crowd: One[LaneCrowd]
    paused_routes: Many[RouteId]
