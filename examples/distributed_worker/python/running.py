"""Runs one machine of this example, and prints its output."""

import json
from typing import Any

from hooks import ExampleHooks
from work_pool import FOLDER, POOL, config

from holdfast import Holdfast


def run(machine: str, data: str | None, **input: Any) -> None:
    where = config(data)
    hf = Holdfast(where.url("sqlite", where.work_path))
    echo = FOLDER / "config" / "echo_processor.yml"
    made = hf.machine(
        FOLDER / "config" / f"{machine}.yml", hooks=ExampleHooks(where), machines={"actual_job_processor": echo}
    )
    print(json.dumps(made.run_sync({"pool_id": POOL, **input})))
    hf.sync.close()
