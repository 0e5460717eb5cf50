"""Rates as people write them: `"100/min"`, `"10/s"`, `"5/30s"`, `"100/min burst 20"`."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast import durations
from holdfast.errors import BadSetting

_RATE = re.compile(r"(?P<count>\d{1,18})\s*/\s*(?P<per>[a-z0-9.]+)(?:\s+burst\s+(?P<burst>\d{1,18}))?")
_UNITS = {"sec": "1s", "second": "1s", "min": "1m", "minute": "1m", "hour": "1h", "day": "1d", "week": "1w"}


class Rate(NamedTuple):
    """One start every `interval_us`; after a quiet time `burst` of them at once."""

    interval_us: int
    burst: int


def rate(text: str) -> Rate:
    """Read a rate; without a burst the starts are evenly spaced."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise BadSetting(f'{text!r} is not a rate; write it like "10/s", "100/min" or "100/min burst 20".')
    per = match["per"]
    us = durations.microseconds(_UNITS.get(per) or (per if per[0].isdigit() else f"1{per}"))
    count, burst = int(match["count"]), int(match["burst"] or 1)
    if not count or not us or not burst or us < count:
        raise BadSetting(f"{text!r} is out of range: at least one, at most a million a second.")
    return Rate(us // count, burst)
