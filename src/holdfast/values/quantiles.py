"""Quantiles of how long something took: half of it, 95 and 99 in a hundred took no longer."""

from __future__ import annotations

Quantiles = dict[str, float]
"""Seconds by quantile: "0.5", "0.95" and "0.99"; empty when there was nothing."""

_NAMES = ("0.5", "0.95", "0.99")


def quantiles(*us: int | None) -> Quantiles:
    """From the microseconds of each."""
    return {name: each / 1e6 for name, each in zip(_NAMES, us, strict=True) if each is not None}
