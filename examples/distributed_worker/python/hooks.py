"""The actions of this example: those of every worker, and the echo."""

import time
from typing import Any

from holdfast.facades.flatagents import DistributedWorkerHooks


class ExampleHooks(DistributedWorkerHooks):
    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        if action != "echo":
            return super().on_action(action, context)
        job = context["job"]
        time.sleep(job.get("delay", 0))
        if job.get("fail"):
            raise ValueError(f"job {job['n']} fails")
        return {"echoed": job}
