"""Settings as they are listed: durations as people write them, URLs without their credentials."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.durations import microseconds, show
from holdfast.kernel.drivers.addresses import without_password
from holdfast.models.places import place_of


def shown_setting(name: str, value: Any) -> Any:
    if name in ("url", "direct_url"):
        return without_password(value)
    return place_of(value).url if name == "provider_url" else written(value)


def written(value: Any) -> Any:
    return show(microseconds(value)) if isinstance(value, timedelta) else value
