"""A worker with a stock Redis client (redis-py) and nothing of Holdfast: it answers jobs of the queue `mail`.

HOST=127.0.0.1 PORT=6380 WORKER=w1 KEY=<64 hex digits> python worker.py
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
call(
    "WORKER.REGISTER",
    json.dumps(
        {"worker_id": worker, "hostname": socket.gethostname(), "agw_version": "0.1.0", "capabilities": {"tools": []}}
    ),
    "RELEASE",  # what an earlier process of this name held goes back: nobody here works on it
)
while True:
    claimed = call("JOB.CLAIM", "mail", "BLOCK", 5_000)
    call("WORKER.HEARTBEAT", worker)
    for text, token, _lease in claimed:
        job = json.loads(text)
        print("job", job["job_id"], "attempt", job["attempt"], flush=True)
        answer = {"sent to": job["payload"]["to"], "by": "redis-py"}
        call("JOB.COMPLETE", job["job_id"], token, json.dumps(answer))
