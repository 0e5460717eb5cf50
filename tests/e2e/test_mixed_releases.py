"""This release beside the next one: real processes of both on one database, which the next one migrates meanwhile.

No release is there yet beside which this code could be tried. The next one is this code and a migration that nobody has
made; see `tests.support.next_release`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.kernel.migrate import code_version
from tests.conftest import Place
from tests.support import next_release
from tests.support.apps import eventually
from tests.support.commands import Said, environment, python
from tests.support.next_release import ADDS
from tests.support.past_kernel import query
from tests.support.postgres import Cluster

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
RUNS = 4

PROGRAM = '''
import os

from holdfast import Holdfast
from holdfast.kernel.migrate import code_version
from holdfast.models.script import Script, call, calls, say

hf = Holdfast(os.environ["PROGRAM_URL"], embedded=False)
SCHEMA = code_version("sqlite")
CODE = os.environ["PROGRAM_RELEASE"]


@hf.job(name="mail:send")
async def send(to: str) -> str:
    return f"{CODE} sent to {to}"


@hf.job(name="of_before", requires=["tag:release=before"])
async def of_before() -> str:
    return CODE


@hf.job(name="of_now", requires=["tag:release=now"])
async def of_now() -> str:
    return CODE


@hf.schedule("every 1s", name="tick")
async def tick() -> str:
    return CODE


@hf.tool
def dig(depth: int) -> str:
    """Dig."""
    return f"{CODE} dug {depth}"


@hf.tool(requires=["tag:release=before"])
def old_dig(depth: int) -> str:
    """Dig in the older release."""
    return f"{CODE} dug {depth}"


@hf.tool(requires=["tag:release=now"], approve=lambda call: call.input["depth"] > 50)
def new_dig(depth: int) -> str:
    """Dig in the newer release."""
    return f"{CODE} dug {depth}"


hf.script("any", Script(
    calls(call("dig", depth=1), call("old_dig", depth=2), call("new_dig", depth=3)), say("all dug")
))
hf.script("boss", Script(call("of_any", task="Dig"), say("told to")))
TOOLS = [dig, old_dig, new_dig]
of_any = hf.agent("of_any", model="scripted:any", tools=TOOLS)
AGENTS = [
    of_any,
    hf.agent("played_before", model="scripted:any", tools=TOOLS, requires=["tag:release=before"]),
    hf.agent("played_now", model="scripted:any", tools=TOOLS, requires=["tag:release=now"]),
    hf.agent("boss", model="scripted:boss", agents=[of_any]),
]
'''

ENQUEUE = f"""
import asyncio

from program import AGENTS, hf, of_before, of_now, send


async def main() -> None:
    for number in range({RUNS}):
        await send.enqueue(str(number))
        await of_before.enqueue()
        await of_now.enqueue()
        for agent in AGENTS:
            await agent.enqueue("Dig", session=f"{{agent.name}} {{number % 2}}")
    await hf.close()


asyncio.run(main())
"""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def next_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the next release."""
    return next_release.build(tmp_path_factory.mktemp("next"), version=ADDS)


@pytest.fixture
def place(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A database that nobody has migrated."""
    if dialect == "sqlite":
        yield Place(f"sqlite:///{tmp_path / 'store.db'}", f"sqlite:///{tmp_path / 'store.db'}")
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    name = f"holdfast_mixed_{os.getpid()}_{next(_numbers)}"
    url = cluster.create_database(name)
    yield Place(url, url)
    cluster.drop_database(name)


class Release:
    """Commands of one release, in a folder with the program."""

    def __init__(self, name: str, code: Path, folder: Path, url: str) -> None:
        self.name = name
        self._folder = folder
        self._env = environment(PYTHONPATH=f"{code}{os.pathsep}{folder}", PROGRAM_URL=url, PROGRAM_RELEASE=name)
        self._url = url

    def run(self, *words: str) -> Said:
        said = python(*words, cwd=self._folder, env=self._env)
        assert said.code == 0, said
        return said

    def migrate(self) -> None:
        self.run("-m", "holdfast", "migrate", "--url", self._url)

    @contextmanager
    def working(self) -> Iterator[None]:
        """A worker of this release, which leaves at the end as one that is told to."""
        options = ["--capabilities", f"tag:release={self.name}", "--name", self.name, "--poll-interval", "200ms"]
        log = (self._folder / f"{self.name}.log").open("ab")
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "program:hf", *options],
            cwd=self._folder,
            env=self._env,
            stdout=log,
            stderr=log,
        )
        try:
            yield
            assert worker.poll() is None, self.log
        finally:
            worker.terminate()
            worker.wait(100)
            log.close()
        assert worker.returncode == 0, self.log

    @property
    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text()


@pytest.mark.timeout(300)
async def test_this_release_and_the_next_one_work_side_by_side(next_code: Path, place: Place, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "enqueuing.py").write_text(ENQUEUE)
    codes = (("before", ROOT / "src"), ("now", next_code))
    old, new = (Release(name, code, tmp_path, place.url) for name, code in codes)
    assert int(old.run("-c", "from program import SCHEMA; print(SCHEMA)").out) == code_version("sqlite")
    assert int(new.run("-c", "from program import SCHEMA; print(SCHEMA)").out) == ADDS
    old.migrate()
    watcher = Holdfast(place.url, embedded=False)
    with ExitStack() as workers:
        old.run("enqueuing.py")
        workers.enter_context(old.working())
        if place.url.startswith("sqlite"):  # by itself, when this code opens it
            await eventually(lambda: has_worker(place))
        else:
            new.migrate()
        workers.enter_context(new.working())
        for release in (new, old):  # each takes what the other asked for
            release.run("enqueuing.py")
        await eventually(lambda: is_done(place))
    try:
        await judge(watcher, place)
    finally:
        await watcher.close()
    assert query(place, "select version, oldest_code from holdfast.schema") == [(ADDS, code_version("sqlite"))]
    for release in (old, new):
        assert "Traceback" not in release.log, release.log


async def has_worker(place: Place) -> bool:
    return bool(query(place, "select 1 from holdfast.worker where status = 'active'"))


async def is_done(place: Place) -> bool:
    """Nothing is left but the schedule, which goes on: it has been fired a few times."""
    ((left,),) = query(
        place, "select count(*) from holdfast.job_now where finished_at is null and kind <> 'program.tick'"
    )
    ((ticks,),) = query(
        place, "select count(*) from holdfast.job_now where state = 'succeeded' and kind = 'program.tick'"
    )
    ((runs,),) = query(place, "select count(*) from holdfast.run where parent is null")
    return int(left) == 0 and int(ticks) >= 3 and int(runs) == 3 * RUNS * 4


async def judge(watcher: Holdfast, place: Place) -> None:
    rows = await watcher.jobs.list(limit=1_000)
    assert [row for row in rows if row.state not in ("succeeded", "pending", "running")] == []
    results = {kind: {row.result for row in rows if row.kind == kind and row.result} for kind in {r.kind for r in rows}}
    assert (results["of_before"], results["of_now"]) == ({"before"}, {"now"})
    runs = await watcher.runs.list(limit=1_000)
    assert {(row.state, row.outcome) for row in runs} == {("completed", "answered")}
    assert len(runs) == 3 * RUNS * 5, "one for each that was asked for, and one below each boss"
    assert await watcher.inquiries.list(state=None) == []
    for run in runs:
        called = await watcher.runs[run.id].calls()
        assert {call.state for call in called} == {"completed"}
        assert [call.output for call in called if call.name == "old_dig"] in ([], ["before dug 2"])
        assert [call.output for call in called if call.name == "new_dig"] in ([], ["now dug 3"])
    layers = {layer for (layer,) in query(place, "select distinct layer from holdfast.job where kind like 'agent:%'")}
    assert layers == {"agents"}
