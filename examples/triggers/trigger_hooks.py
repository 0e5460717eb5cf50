"""The hooks of places where a process may not outlive what started it. FLATAGENTS_BACKENDS says where the pools are."""

import subprocess
from collections.abc import Sequence

from holdfast.facades.flatagents import DistributedWorkerHooks


class Stored(DistributedWorkerHooks):
    """Launched workers are stored, and the next tick elsewhere starts a process for each."""

    def on_launched(self, execution_ids: Sequence[str], queue: str, url: str) -> None:
        print(f"workers stored: {len(execution_ids)}")


class InPod(DistributedWorkerHooks):
    """Launched workers run beside the tick, in its pod, and the tick waits for them."""

    def on_launched(self, execution_ids: Sequence[str], queue: str, url: str) -> None:
        said = [["--execution-id", id, "--queue", queue] for id in execution_ids]
        told = self.invoker.environment(url)
        for process in [subprocess.Popen(self.invoker.command(each), env=told) for each in said]:
            process.wait()
