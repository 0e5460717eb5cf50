"""Somebody who asks for little every 50 ms while others attack: `python -m tests.attack.bystander HTTP RESP TOKEN KEY`.

A process of its own, so that the attacker's work is not taken for the server's. Each line on its standard input is
answered with what was measured since the line before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict

EVERY = 0.05
PATIENCE = 30.0


async def asked(port: int, request: bytes, wanted: bytes) -> float:
    """Milliseconds to the whole answer; an error if it is not the one that was wanted."""
    begun = time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    if not answer.startswith(wanted):
        raise ConnectionError(f"answered with {answer[:200]!r}")
    return (time.perf_counter() - begun) * 1_000


def get(path: str, token: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {token}", "accept: text/html"]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode()


async def main() -> None:
    http, resp, token, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    ping = f"*2\r\n$4\r\nAUTH\r\n${len(key)}\r\n{key}\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n".encode()
    questions = {
        "healthz": (http, get("/healthz", token), b"HTTP/1.1 200"),
        "page": (http, get("/workers", token), b"HTTP/1.1 200"),
        "ping": (resp, ping, b"+OK\r\n+PONG"),
    }
    times: defaultdict[str, list[float]] = defaultdict(list)
    wrong: list[str] = []
    under_way: set[asyncio.Task[None]] = set()

    async def ask(name: str) -> None:
        try:
            times[name].append(await asked(*questions[name]))
        except (OSError, TimeoutError) as problem:
            wrong.append(f"the bystander's {name}: {type(problem).__name__} {problem}")

    async def report() -> None:
        while await asyncio.to_thread(sys.stdin.readline):
            worst = {name: sorted(each)[int(len(each) * 0.99)] for name, each in times.items() if each}
            asked = sum(map(len, times.values()))
            print(json.dumps({"p99": worst, "asked": asked, "wrong": wrong[:20]}), flush=True)
            times.clear()
            wrong.clear()

    reporting = asyncio.create_task(report())
    while not reporting.done():
        for name in questions:
            task = asyncio.create_task(ask(name))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.sleep(EVERY)


if __name__ == "__main__":
    asyncio.run(main())
