"""Run the tests that failed last once more, one after the other, on a machine that does nothing else.

For `.ci/run`: a test with real processes may fail because the machine was busy. What fails again is a failure, and so
are more than a few at once. What passes now is named as unsteady, so that somebody fixes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
AT_MOST = 5


def main() -> int:
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not failed:
        print("no failed test is recorded: what failed was the run itself.")
        return 1
    if len(failed) > AT_MOST:
        print(f"{len(failed)} tests failed; only up to {AT_MOST} are tried again.")
        return 1
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--last-failed", "--last-failed-no-failures", "none"]
    ended = subprocess.run(command, check=False).returncode
    if ended == 0:
        print("\n".join(f"unsteady, failed beside others and passed alone: {test}" for test in failed))
    return ended


if __name__ == "__main__":
    sys.exit(main())
