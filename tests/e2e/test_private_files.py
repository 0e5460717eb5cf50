"""What Holdfast writes is for the user who runs it, whatever the umask is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.agents.tools import ToolContext
from holdfast.facades.universal_agent import workspaces
from holdfast.facades.universal_agent.gateway import GatewayRequest, InProcessGateway
from holdfast.facades.universal_agent.runtime_db import AGENT
from holdfast.models.script import Script, call, say
from holdfast.models.spool import KeptBatch, Spool
from holdfast.settings import Settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Files and folders that somebody else may read or write."""
    return [f"{each} {each.stat().st_mode:o}" for each in sorted(folder.rglob("*")) if each.stat().st_mode & 0o077]


async def test_the_database_and_all_that_a_run_leaves(folder: Path) -> None:
    settings = Settings(url="sqlite:///.holdfast/deep/holdfast.db", script_witness=str(folder / "witness"))
    async with Holdfast(settings=settings) as hf:
        hf.script("a", Script(say("hello")))
        run = await hf.agent("a", model="scripted:a").enqueue("x")
        await hf.ensure_worker()
        assert await run.text() == "hello"
        await run.export(folder / "run.capsule")
        await run.cassette(folder / "run.json")
        assert {"holdfast.db", "holdfast.db-wal", "holdfast.db-shm"} <= {
            each.name for each in (folder / ".holdfast" / "deep").iterdir()
        }
        assert open_to_others(folder) == []
    assert open_to_others(folder) == []


async def test_a_folder_of_an_earlier_release_is_closed(folder: Path) -> None:
    (folder / ".holdfast").mkdir(mode=0o755)
    async with Holdfast("sqlite:///.holdfast/holdfast.db", embedded=False) as hf:
        await hf.migrate()
    assert open_to_others(folder) == []


async def test_a_folder_of_the_users_own_stays_as_it_is(folder: Path) -> None:
    (folder / "data").mkdir(mode=0o755)
    async with Holdfast("sqlite:///data/holdfast.db", embedded=False) as hf:
        await hf.migrate()
    assert (folder / "data").stat().st_mode & 0o777 == 0o755
    assert [each for each in open_to_others(folder) if not each.startswith(f"{folder / 'data'} ")] == []


async def test_the_workspaces_of_sessions_and_runs(folder: Path) -> None:
    """A tool that runs as the same user reads and writes there, and makes its own files as it likes."""
    async with Holdfast("sqlite:///.holdfast/holdfast.db") as hf:

        @hf.tool
        def write(ctx: ToolContext) -> str:
            """Leave a product beside the manifest."""
            place = Path(ctx.variables["workspace_dir"])
            (place / "work_products" / "made.txt").write_text((place / "run_manifest.json").read_text())
            return "written"

        hf.script("a", Script(call("write"), say("done")))
        hf.agent(AGENT, model="scripted:a", tools=[write])
        gateway = InProcessGateway(hf, workspace_base=folder / "deep" / "workspaces")
        session = await gateway.create_session("ann", session_id="one")
        result = await gateway.run_query(session, GatewayRequest("x"))
        assert (result.success, result.tool_calls) == (True, 1), result
        workspaces.write_attempt(Path(session.workspace_dir), 1, {})
        made = f"{session.workspace_dir}/work_products/made.txt 100666"
        assert open_to_others(folder) == [made]


def test_a_batch_of_a_scripted_model(folder: Path) -> None:
    spool = Spool(folder / "batches")
    spool.keep(KeptBatch(id="b", call="c", created_us=0, ends_us=0, counts={}), [b"{}\n"])
    assert open_to_others(folder) == []
