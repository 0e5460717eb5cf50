"""The registry of this example, as a list on the terminal: `python worker_registry.py`."""

import sys

from work_pool import backends

if __name__ == "__main__":
    for worker in backends(*sys.argv[1:2]).registration.list():
        print(worker.worker_id, worker.status, worker.current_task_id or "-")
