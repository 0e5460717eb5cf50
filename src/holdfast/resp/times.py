"""Times as clients read them."""

from __future__ import annotations

from holdfast.values.times import iso, moment


def shown_time(us: int | None) -> str | None:
    return None if us is None else iso(moment(us))
