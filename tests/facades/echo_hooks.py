"""Hooks whose processor echoes its job, in whatever process plays it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from holdfast.facades.flatagents import DistributedWorkerHooks

ECHO = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: echo_processor
  context:
    job: "{{ input.job }}"
  states:
    start:
      type: initial
      action: echo
      output_to_context:
        echoed: "{{ output.echoed }}"
      transitions:
        - to: done
    done:
      type: final
      output:
        echoed: "{{ context.echoed }}"
"""


class EchoHooks(DistributedWorkerHooks):
    """The actions of workers, and `echo`: a job may say what to wait for, that it fails, and how much it says."""

    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        if action != "echo":
            return super().on_action(action, context)
        job = context["job"] if isinstance(context["job"], dict) else {}
        while "until" in job and not Path(job["until"]).exists():
            threading.Event().wait(0.02)
        if "log" in job:
            with Path(job["log"]).open("a") as log:
                log.write(f"{job['n']}\n")
        if job.get("fail"):
            raise ValueError(f"job {job.get('n')} is bad")
        return {"echoed": "x" * job["flood"] if "flood" in job else context["job"]}


class RecordingHooks(EchoHooks):
    """They start no process for what is launched: the test looks at the ids."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.launched: list[str] = []

    def on_launched(self, execution_ids: Any, queue: str, url: str) -> None:
        self.launched += execution_ids


class StoppingHooks(EchoHooks):
    """When their process is told to stop, they wait for a file that the environment names, so that a test can look."""

    def on_stopping(self) -> None:
        super().on_stopping()
        while not Path(os.environ["ECHO_MAY_STOP"]).exists():
            threading.Event().wait(0.02)


class DyingHooks(EchoHooks):
    """Their process is killed when its launches are stored, before it starts a process for any of them."""

    def on_launched(self, execution_ids: Any, queue: str, url: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
