"""`make attack`: hundreds of thousands of hostile requests, what came of them, and how long a bystander waited."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from tests.attack.attacks import FULL, SAMPLE, attack


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--sample", action="store_true", help="a little of each, in some seconds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable()  # what fails on purpose
    return 1 if asyncio.run(attack(SAMPLE if given.sample else FULL, given.seed)) else 0


if __name__ == "__main__":
    sys.exit(main())
