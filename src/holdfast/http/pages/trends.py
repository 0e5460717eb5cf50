"""Trends: how often something ended in each of the last 24 hours, as a small line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from holdfast.http.api.seen import Seen
from holdfast.http.pages.charts import sparkline
from holdfast.http.pages.filters import now_of
from holdfast.values.tallies import StatRecord


def by_hour(seen: Seen, found: Sequence[StatRecord]) -> list[int]:
    """The counts of the last 24 hours, the oldest first, with none where nothing ended."""
    counts: Counter[datetime] = Counter()
    for each in found:
        counts[each.at] += each.count
    last = now_of(seen).replace(minute=0, second=0, microsecond=0)
    return [counts[last - timedelta(hours=back)] for back in range(23, -1, -1)]


def trends(seen: Seen, failed: Sequence[StatRecord], by: Literal["source", "kind"]) -> Mapping[str, str]:
    """A line of failures for each agent or kind of job, by its name."""
    apart: dict[str, list[StatRecord]] = {}
    for each in failed:
        apart.setdefault(getattr(each, by), []).append(each)
    return {
        name: sparkline(by_hour(seen, rows), "Failures of all its kinds, by hour", tone="failed")
        for name, rows in apart.items()
    }
