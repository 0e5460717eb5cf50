"""An AWS Lambda function for messages of a queue: each says that there is work, and the checker looks at its pool.

Lambda may bring a message twice. Its id names the execution, so the second time runs nothing.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from trigger_hooks import Stored

from holdfast import Holdfast
from holdfast.facades.flatagents import Triggers

HERE = Path(__file__).parent
CONFIG = HERE.parent / "distributed_worker" / "config"
MACHINES = {
    "parallelization_checker": CONFIG / "parallelization_checker.yml",
    "actual_job_processor": HERE / "greeter.yml",
}


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The body of a message is the input of the machine, such as `{"pool_id": "greetings", "max_workers": 3}`."""
    return {"executions": asyncio.run(_handle(event["Records"]))}


async def _handle(messages: list[dict[str, Any]]) -> list[str]:
    app = Holdfast(embedded=False)  # HOLDFAST_URL
    triggers = Triggers(HERE / "trigger_registry.yml", app=app, hooks=Stored(), machines=MACHINES)
    try:
        return [await triggers.handle("queue", json.loads(each["body"]), key=each["messageId"]) for each in messages]
    finally:
        await app.close()
