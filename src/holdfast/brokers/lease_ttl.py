"""How long a lease may be given for."""

from __future__ import annotations

from holdfast import durations
from holdfast.durations import Duration
from holdfast.errors import BadSetting
from holdfast.settings import Settings

_LEAST_US = 1_000


def lease_ttl_us(given: Duration, settings: Settings, what: str) -> int:
    """In microseconds; `BadSetting` when it is next to nothing, or longer than an attempt may last."""
    ttl_us, ceiling_us = durations.microseconds(given), durations.microseconds(settings.lease_ceiling)
    if not _LEAST_US <= ttl_us <= ceiling_us:
        raise BadSetting(
            f"{what} must be at least {durations.show(_LEAST_US)} and at most {durations.show(ceiling_us)}, the "
            f"lease_ceiling; not {durations.show(ttl_us)}."
        )
    return ttl_us
