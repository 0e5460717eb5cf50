"""The statements of `waiting.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import ChannelName
from holdfast.kernel.rows import (
    ChildRow,
    Fence,
    Kin,
    LastStep,
    Moved,
    Resolution,
    Seq,
    SettledJob,
    Signal,
    Step,
    Suspension,
    Woken,
)
from holdfast.kernel.sql import Exec, Many, One, Statements


class WaitingSql(
    Statements,
    file="waiting.sql",
    rows={"suspensions": Suspension, "resolutions": Resolution},
    types={"id": "uuid", "payload": "json"},
):
    wake: Many[Woken]
    find_overdue: Many[Kin]
    overdue: Many[Moved]
    lock_channel: Exec
    hold_still: One[Seq]
    park: One[SettledJob]
    suspend: Many[Seq]
    resolve: Many[Moved]
    send_signal: One[Signal]
    sent_signal: One[Signal]
    signal: Many[Woken]
    wake_some: Many[Woken]
    take_signal: One[Signal]
    hold: One[Fence]
    store_step: One[Step]
    raise_count: One[Step]
    list_steps: Many[Step]
    last_step: One[LastStep]
    take_write_lock: Exec
    find_step: One[Step]
    add_children: Exec
    list_children: Many[ChildRow]
    untaken_signals: Many[Seq]
    prune_signals: Exec
    held_channels: Many[ChannelName]
    list_channels: Many[ChannelName]
    prune_channels: Exec
