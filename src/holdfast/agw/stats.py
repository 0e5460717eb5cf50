"""What a worker says about itself with each heartbeat."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class JobTally:
    completed: int = 0
    failed: int = 0
    spent_ms: int = 0

    def add(self, status: str, duration_ms: int) -> None:
        self.completed += status == "completed"
        self.failed += status != "completed"
        self.spent_ms += duration_ms


def stats(tally: JobTally, active: int, uptime: float) -> dict[str, Any]:
    ended = tally.completed + tally.failed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "active_jobs": active,
        "completed_jobs_total": tally.completed,
        "failed_jobs_total": tally.failed,
        "avg_job_duration_ms": tally.spent_ms // ended if ended else 0,
        "uptime_seconds": int(uptime),
        "cpu_usage_percent": round(100 * os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "memory_mb": peak >> (20 if sys.platform == "darwin" else 10),
        "disk_available_gb": shutil.disk_usage(tempfile.gettempdir()).free >> 30,
    }


def platform_name() -> str:
    return f"{sys.platform}-{platform.machine()}"
