"""Add jobs: `python seed_jobs.py --count 10`. `--fail` makes them fail, `--delay` makes them last."""

import argparse

from work_pool import POOL, backends

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--max-retries", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--data")
    given = parser.parse_args()
    pool = backends(given.data).work.pool(POOL)
    for n in range(given.count):
        pool.push({"n": n, "delay": given.delay, "fail": given.fail}, {"max_retries": given.max_retries})
    print(f"{given.count} jobs added, {pool.size()} wait")
