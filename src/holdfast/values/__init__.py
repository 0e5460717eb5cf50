"""Public values: what Python returns, `--json` prints and events carry, in one shape.

A value is a frozen dataclass. Its times are datetimes in UTC, its durations are timedeltas, stored JSON is parsed, and
flags are bools. Rows of the store stay inside; a module per subject turns them into values, and `as_json` turns any
value into JSON. Values of agents, runs and sessions are in `holdfast.agents.values`.
"""

from holdfast.values.page import Page
from holdfast.values.plain import as_json

__all__ = ["Page", "as_json"]
