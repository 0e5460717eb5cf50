"""The slots that agents have in a worker: their runs, their runs in batch mode, and the calls of their tools."""

from __future__ import annotations

from holdfast.workers.slots import SlotGroup

# A route of a run names the tools that its worker must have, and that of a run in batch mode the batch too. So tools
# rank below runs, and batches above everything else.
RUNS = SlotGroup("runs", lambda settings: settings.max_concurrent_streaming_runs, rank=-1)
BATCHED = SlotGroup("batched", lambda settings: settings.max_concurrent_runs, rank=1)
TOOLS = SlotGroup("tools", lambda settings: settings.max_concurrent_tools, rank=-2, prefetches=True, abandons=True)
