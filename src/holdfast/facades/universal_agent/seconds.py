"""Durations as this interface has them: numbers of seconds."""

from __future__ import annotations


def is_seconds(value: object, *, least: float, most: float) -> bool:
    """Whether a caller gave a number, and between these. Text, None, NaN and True are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
