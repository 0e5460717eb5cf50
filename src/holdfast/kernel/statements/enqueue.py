"""The statements of `enqueue.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.rows import Enqueued, Item, KeyOwner, Kin, NewJob, Replaced, Route, SettledJob, UniqueJob
from holdfast.kernel.sql import One, Statements


class EnqueueSql(
    Statements,
    file="enqueue.sql",
    rows={"jobs": NewJob, "items": Item, "routes": Route},
    types={"id": "uuid", "job": "uuid", "payload": "json", "metadata": "jsonb"},
):
    enqueue_one: One[Enqueued]
    enqueue_plain: One[Enqueued]
    enqueue: One[Enqueued]
    take_key: One[KeyOwner]
    find_key: One[KeyOwner]
    find_unique: One[UniqueJob]
    replace: One[Replaced]
    enqueue_again: One[SettledJob]
    repeat_child: One[Kin]
