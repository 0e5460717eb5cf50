"""The document's code blocks, as they were cut out of it: programs run unedited, what excerpts name exists."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import UsageError
from holdfast.facades.universal_agent import gateway, install, state, uninstall, worker_pool
from holdfast.facades.universal_agent.runtime_db import AGENT, RuntimeDb, connect_runtime_db
from holdfast.testing import Script, say
from tests.facades.documented import FOLDER, block
from tests.facades.test_pools import FAST, Held, until, until_status
from tests.support.agents import redeclare

PROGRAMS = {"workerpoolmanager.py", "worker.py", "queue_run_function.py", "custom_run_handler.py"}
EXCERPTS = {"lease_functions.py", "scale_up.py", "scale_down.py", "gateway_integration.py", "pool_statistics.py"}
QUERIES = {"database_queries.sql"}


@pytest.fixture(autouse=True)
def installed(in_own_folder: Path) -> Iterator[None]:
    install()
    yield
    uninstall()


async def run(code: str, **namespace: Any) -> dict[str, Any]:
    """Run a program with awaits at its top, in a namespace of these names."""
    compiled = compile(code, "the document", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    coroutine = eval(compiled, namespace)
    if coroutine is not None:
        await coroutine
    return namespace


def test_every_block_is_listed() -> None:
    assert {path.name.removesuffix(".txt") for path in FOLDER.iterdir()} == PROGRAMS | EXCERPTS | QUERIES


async def test_the_pool_starts_says_what_it_has_and_stops(capsys: pytest.CaptureFixture[str]) -> None:
    await run(block("workerpoolmanager.py"))
    assert capsys.readouterr().out == "Active workers: 1\nCompleted: 0\n"


async def test_a_worker_starts_and_stops() -> None:
    conn = connect_runtime_db()
    try:
        made = await run(block("worker.py"), db_connection=conn, run_handler=Held())
    finally:
        await conn.aclose()
    assert (made["worker"].worker_id, made["worker"].status) == ("worker_001", "stopped")


async def test_a_run_is_queued() -> None:
    made = await run(block("queue_run_function.py"))
    conn: RuntimeDb = made["conn"]
    found = state.get_run(conn, "job_abc123")
    conn.close()
    assert found is not None
    assert (found["status"], found["workspace_dir"]) == ("queued", "/home/user/project")
    assert found["last_job_prompt"] == "Analyze the codebase and generate a report"


@pytest.fixture
async def pool_of_the_document(answering: Holdfast, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """The names that the document's handler uses and does not define."""
    answering.script("analyst", Script(say("A report.")))
    redeclare(answering, AGENT, model="scripted:analyst")
    conn = connect_runtime_db(answering)
    saved: list[tuple[str, Any]] = []
    yield {
        "conn": conn,
        "get_run": state.get_run,
        "preprocess": str.upper,
        "save_results": lambda run_id, result: saved.append((run_id, result)),
        "InProcessGateway": gateway.InProcessGateway,
        "ExternalGateway": gateway.ExternalGateway,
        "GatewayRequest": gateway.GatewayRequest,
        "WorkerPoolManager": worker_pool.WorkerPoolManager,
        "pool_config": worker_pool.PoolConfig(db_path=answering.settings.url),
        "worker_config": FAST,
        "saved": saved,
    }
    await conn.aclose()


async def test_a_handler_of_ones_own(pool_of_the_document: dict[str, Any], tmp_path: Path) -> None:
    names = await run(block("custom_run_handler.py"), **pool_of_the_document)
    conn, saved = names["conn"], names["saved"]
    worker = worker_pool.Worker(FAST, conn, names["my_run_handler"])
    await worker.start()
    try:
        await conn.runs.queue("job_1", "Analyze", str(tmp_path / "project"))
        await until_status(conn, "job_1", "completed")
    finally:
        await worker.stop()
    assert [(run_id, result.response_text) for run_id, result in saved] == [("job_1", "A report.")]
    assert isinstance(names["pool"], worker_pool.WorkerPoolManager)


async def test_the_default_handler_as_it_is_printed(pool_of_the_document: dict[str, Any], tmp_path: Path) -> None:
    names = await run(block("gateway_integration.py"), **pool_of_the_document)
    printed, conn = names["_default_run_handler"], names["conn"]

    class Pool:
        worker_config_template = FAST

    Pool.conn = conn  # type: ignore[attr-defined]

    async def handler(run_id: str, workspace_dir: str) -> bool:
        return bool(await printed(Pool, run_id, workspace_dir))

    worker = worker_pool.Worker(FAST, conn, handler)
    await worker.start()
    try:
        await conn.runs.queue("job_1", "Analyze", str(tmp_path / "project"))
        await until_status(conn, "job_1", "completed")
    finally:
        await worker.stop()
    session = await conn.app.sessions.get("project")
    assert session.metadata["user_id"] == "worker_job_1"


def test_the_lease_functions_have_the_documents_signatures() -> None:
    for node in ast.parse(block("lease_functions.py")).body:
        assert isinstance(node, ast.FunctionDef)
        ours = inspect.signature(getattr(state, node.name))
        assert list(ours.parameters) == [argument.arg for argument in node.args.args]


async def test_what_the_excerpts_of_scaling_name_exists() -> None:
    """They run too: with nothing to do they change nothing."""
    held = Held()
    pool = worker_pool.WorkerPoolManager(worker_pool.PoolConfig(), FAST, run_handler=held)
    await pool.start()
    try:
        await run(block("scale_up.py"), self=pool, queue_depth=10)
        await run(block("scale_down.py"), self=pool, queue_depth=0, scale_down_threshold=0)
        assert len(pool.workers) == 1
        (worker,) = pool.workers.values()
        assert worker.is_idle()
        await until(lambda: worker.idle_duration > 0)
        names = await run(block("pool_statistics.py"), pool=pool)
    finally:
        await pool.stop()
    printed = ast.literal_eval(block("pool_statistics.py").partition("# Returns:")[2].strip())
    assert names["stats"].keys() == printed.keys()
    (ours,), theirs = names["stats"]["workers"].values(), printed["workers"]["worker_abc"]
    assert ours.keys() == theirs.keys()


def test_a_connection_of_sqlite3_is_refused_by_name() -> None:
    class Connection:
        """As the standard library's, which this process must not open."""

    Connection.__module__ = "sqlite3"
    with pytest.raises(UsageError, match=r"connect_runtime_db returns, not sqlite3\."):
        state.get_run(Connection(), "run_1")  # type: ignore[arg-type]


def test_installing_twice_is_installing_once_and_another_package_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import universal_agent.durable.worker_pool as first  # type: ignore[import-not-found]

    install()
    import universal_agent.durable.worker_pool as second

    assert first is second is worker_pool
    uninstall()
    (tmp_path / "universal_agent").mkdir()
    (tmp_path / "universal_agent" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="is installed here"):
        install()
    import universal_agent  # noqa: F401

    try:
        with pytest.raises(UsageError, match="has been imported here"):
            install()
    finally:
        del sys.modules["universal_agent"]
