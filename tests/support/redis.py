"""A real redis-server of the tests' own, on loopback, without persistence."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.redis import find_redis


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running_redis() -> Iterator[int]:
    """Its port. It is installed if it is missing and we may install it."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(["redis-server", *options], executable=find_redis(), stdout=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, "redis-server has ended"
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()
