"""The statements of `crowd.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import HeldDuty, ReadyRoute
from holdfast.kernel.sql import Many, Statements


class CrowdSql(Statements, file="crowd.sql"):
    ready_routes: Many[ReadyRoute]
    duties_held: Many[HeldDuty]
