"""A paper pipeline without a daemon: `papers.py add`, then `papers.py check` until `papers.py show` says done.

`check` launches workers, each a process that claims one paper, asks an agent about it, writes its summary and exits.
`work` is one such worker, here. `reap` gives up workers that have been silent for a minute, and their papers go back.
The three machines are those of `distributed_worker`, unedited: what is new is the processor, the hooks, and the table
that the papers are in.
"""

import json
import sys
from pathlib import Path

import apsw
from paper_hooks import PAPERS, WORKERS, PaperHooks
from paper_queue import PaperQueue

from holdfast import Holdfast

HERE = Path(__file__).parent
MACHINES = HERE.parent / "distributed_worker" / "config"
CRAWLED = (
    {"title": "On Leases", "abstract": "A lease is a right that ends."},
    {"title": "On Tokens", "abstract": "A number that rises with every claim."},
    {"title": "On Nothing"},  # no abstract: its answer is refused, three times
)


def add() -> None:
    pool = PaperQueue(PAPERS).papers
    for paper in CRAWLED:
        pool.push(paper)
    print(f"{pool.size()} papers wait")


def run(machine: str, **input: float) -> None:
    hf = Holdfast(f"sqlite:///{WORKERS}")
    analyzer = HERE / "analyzer_machine.yml"
    made = hf.machine(MACHINES / f"{machine}.yml", hooks=PaperHooks(), machines={"actual_job_processor": analyzer})
    print(json.dumps(made.run_sync({"pool_id": "papers", "max_workers": 2, **input})))
    hf.sync.close()


def show() -> None:
    shown = "select title, status, attempts, coalesce(summary_path, error, '-') from paper_queue order by id"
    for row in apsw.Connection(str(PAPERS)).execute(shown):
        print(*row, sep=" | ")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add"]:
            add()
        case ["check"]:
            run("parallelization_checker")
        case ["work"]:
            run("job_worker")
        case ["reap"]:
            run("stale_worker_reaper")
        case ["reap", seconds]:
            run("stale_worker_reaper", stale_threshold_seconds=float(seconds))
        case _:
            show()
