"""Run one worker: it claims one job, processes it and exits. SIGTERM lets it hand its job back."""

import argparse
import json
import os

from work_pool import FOLDER, POOL, config

from holdfast.facades.flatagents.environment import BACKENDS
from holdfast.machines.run import main_of_a_process

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    where = config(parser.parse_args().data)
    os.environ[BACKENDS] = json.dumps(where.absolute())
    files = FOLDER / "config"
    main_of_a_process(
        [
            *("--machine", str(files / "job_worker.yml"), "--input", json.dumps({"pool_id": POOL})),
            *("--bind", f"actual_job_processor={files / 'echo_processor.yml'}"),
            *("--hooks", "hooks:ExampleHooks", "--url", where.url("sqlite", where.work_path)),
        ]
    )
