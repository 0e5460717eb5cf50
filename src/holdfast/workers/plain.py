"""Plain attempts: a handler with nothing around it, as most are.

It is async and shares this process, takes no context, and its time is not limited. The worker calls it from the
attempt's own coroutine. Only the way to the handler is shorter: what its end means is decided in `attempt`, for all.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from holdfast.workers.definitions import Definition
from holdfast.workers.holdings import Holding


def called(definition: Definition | None, holding: Holding, now: float) -> Awaitable[Any] | None:
    """The handler, called with its stored arguments and not yet begun; None when this attempt is not a plain one.

    None also when it may not start, or its arguments do not fit: the long way says what becomes of it then.
    """
    lease = holding.lease
    if definition is None or not definition.is_plain or lease.timeout_us is not None or lease.deadline_at is not None:
        return None
    if not holding.may_start(now):
        return None
    try:
        handler: Awaitable[Any] = definition.function(**definition.signature.read(lease.payload))
    except Exception:  # noqa: BLE001  `attempt` meets it again, and reports it
        return None
    holding.entered = True
    return handler
