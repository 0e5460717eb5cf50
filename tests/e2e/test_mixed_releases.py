"""A release before beside this one: real processes of both on one database, which this code migrates meanwhile.

A release before is a wheel of a pinned state of this repository, built without the network.
"""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.kernel.migrate import code_version
from tests.conftest import Place
from tests.support.apps import eventually
from tests.support.commands import Said, environment, python
from tests.support.past_kernel import query
from tests.support.postgres import Cluster

pytestmark = pytest.mark.long

# By schema, the tree of the last commit of that release. A tree, not a commit: it stays the same when history is told
# in other words.
BEFORE = {16: "605739e83a324d5a547fd2014e800a98a963b2a3"}
ROOT = Path(__file__).parents[2]
FETCH = (
    f"the sources of the releases before (git trees {', '.join(BEFORE.values())}) are not in this checkout. Fetch the "
    f"whole history with `git fetch --unshallow`, or run this test in a full clone of the repository; a source archive "
    f"does not have them."
)
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
    """Dig in the release before."""
    return f"{CODE} dug {depth}"


@hf.tool(requires=["tag:release=now"], approve=lambda call: call.input["depth"] > 50)
def new_dig(depth: int) -> str:
    """Dig in this release."""
    return f"{CODE} dug {depth}"


register = getattr(hf, "script", None) or hf.book.scripts.__setitem__  # as the release before has it
register("any", Script(
    calls(call("dig", depth=1), call("old_dig", depth=2), call("new_dig", depth=3)), say("all dug")
))
register("boss", Script(call("of_any", task="Dig"), say("told to")))
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


class Before(NamedTuple):
    """A release before: its schema, and a folder with the package as it installs it."""

    schema: int
    code: Path


@pytest.fixture(scope="session", params=BEFORE, ids=lambda schema: f"schema{schema}")
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Before:
    folder = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "archive", BEFORE[request.param]], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.fail(f"{FETCH} git says: {archive.stderr.decode().strip()}", pytrace=False)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
        sources.extractall(folder / "sources", filter="data")
    offline = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    pip("wheel", "--no-build-isolation", *offline, "--wheel-dir", str(folder), str(folder / "sources"))
    (wheel,) = folder.glob("*.whl")
    pip("install", *offline, "--target", str(folder / "installed"), str(wheel))
    return Before(request.param, folder / "installed")


def pip(*words: str) -> None:
    said = python("-m", "pip", *words, env=environment())
    assert said.code == 0, said


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
async def test_a_release_before_and_this_one_work_side_by_side(before: Before, place: Place, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "enqueuing.py").write_text(ENQUEUE)
    codes = (("before", before.code), ("now", ROOT / "src"))
    old, new = (Release(name, code, tmp_path, place.url) for name, code in codes)
    assert int(old.run("-c", "from program import SCHEMA; print(SCHEMA)").out) == before.schema
    assert int(new.run("-c", "from program import SCHEMA; print(SCHEMA)").out) == code_version("sqlite")
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
