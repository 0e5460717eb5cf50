"""Serves the tool `weather` of an agent (`agent.py`) with a stock Redis client (redis-py) and nothing of Holdfast.

HOST=127.0.0.1 PORT=6380 WORKER=w1 KEY=<64 hex digits> python tool.py
"""

import json
import os
import socket
from collections.abc import Callable
from typing import Any

import redis

worker = os.environ["WORKER"]
client = redis.Redis(os.environ["HOST"], int(os.environ["PORT"]), password=os.environ["KEY"], decode_responses=True)
call: Callable[..., Any] = client.execute_command
said = {
    "worker_id": worker,
    "hostname": socket.gethostname(),
    "agw_version": "0.1.0",
    "capabilities": {"tools": ["weather"]},
    "tags": {"by": "redis"},
}
call("WORKER.REGISTER", json.dumps(said), "RELEASE")
while True:
    claimed = call("JOB.CLAIM", "outside", "BLOCK", 5_000)
    call("WORKER.HEARTBEAT", worker)
    for text, token, _lease in claimed:
        job = json.loads(text)
        city = job["payload"].get("city")
        if isinstance(city, str):
            call("JOB.COMPLETE", job["job_id"], token, json.dumps({"city": city, "sky": "rain", "by": "redis-py"}))
        else:  # the model reads this, and may do better
            call("JOB.FAIL", job["job_id"], token, "city must be a text", "NEVER")
