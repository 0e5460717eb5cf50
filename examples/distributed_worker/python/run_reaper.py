"""Give up workers that are silent, and return their jobs: `python run_reaper.py --stale-threshold 60`."""

import argparse

from running import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stale-threshold", type=float, default=60)
    parser.add_argument("--data")
    given = parser.parse_args()
    run("stale_worker_reaper", given.data, stale_threshold_seconds=given.stale_threshold)
