"""When a schedule fires: cron expressions in a time zone, or a plain rhythm such as `every 5m`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast import durations
from holdfast.errors import BadSetting

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def next_tick(cron: str, timezone: str, after_us: int) -> int:
    """The first tick after a moment, in microseconds. Where a clock change skips or repeats an hour: cron's rules."""
    zone = _zone(timezone)
    if cron.startswith("every "):
        step = durations.microseconds(cron.removeprefix("every "))
        if step < 1_000_000:
            raise BadSetting(f"{cron!r} fires too often: a schedule fires at most once a second.")
        return (after_us // step + 1) * step
    begin = (_EPOCH + timedelta(microseconds=after_us)).astimezone(zone)
    try:
        # In an hour that the clock repeats, CronSim may first name a tick of the hour before.
        tick = next(tick for tick in CronSim(_NAMED.get(cron, cron), begin) if tick.astimezone(UTC) > begin)
    except (CronSimError, ValueError) as problem:  # also for a number of more digits than Python reads
        raise BadSetting(
            f'{cron!r} is not a cron expression ({problem}); write it like "0 3 * * *", "@daily" or "every 5m".'
        ) from None
    except StopIteration:
        raise BadSetting(f"{cron!r} never fires.") from None
    return round((tick - _EPOCH) / timedelta(microseconds=1))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSetting(f"{name!r} is not a time zone that this machine knows; write it like Europe/Athens.") from None
