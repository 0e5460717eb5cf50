"""Launch as many workers as are missing: `python run_checker.py --max-workers 3`."""

import argparse

from running import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-workers", type=int, default=10)
    parser.add_argument("--data")
    given = parser.parse_args()
    run("parallelization_checker", given.data, max_workers=given.max_workers)
