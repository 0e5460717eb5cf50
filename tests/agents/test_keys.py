"""Keys to providers: a worker that has none leaves agents that need one to others, and no key is shown anywhere."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import UsageError, how_to_install
from holdfast.models.script import Script, say
from holdfast.models.simulator import simulator
from holdfast.testing import Labs
from holdfast.values import microseconds
from holdfast.workers.role import Role
from tests.support.agents import MODEL, settle
from tests.support.apps import MakeApp, eventually, outcomes, working

OTHER = "claude-haiku-4-5"


@pytest.mark.usefixtures("keyless")
async def test_a_worker_without_a_key_leaves_runs_to_others(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves whatever needs none, says what it lacks, and `why` says what the run lacks."""
    hf = make_app(embedded=False)
    agent, plain = hf.agent("paid", model=MODEL), hf.agent("free", model="scripted:")
    hf.script("", Script(say("for nothing")))

    @hf.job
    async def job() -> str:
        return "done"

    run = await agent.enqueue("Go")
    with caplog.at_level(logging.WARNING, "holdfast.agents"):
        async with working(hf):
            assert await (await job.enqueue()).result() == "done"
            await (await plain.enqueue("Go")).result()
            assert ((await run.refresh()).state, await outcomes(hf, run.id)) == ("pending", [])
            why = str(await run.why())
    assert f"no live worker has a key for model {MODEL}" in why
    assert "ANTHROPIC_API_KEY" in why
    (told,) = [record.getMessage() for record in caplog.records if "ANTHROPIC_API_KEY" in record.getMessage()]
    assert ("'paid'" in told, "'free'" in told) == (True, False)
    async with simulator(script=Script(say("paid for"))) as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
        rich = make_app(embedded=False, provider_url=provider.url)
        rich.agent("paid", model=MODEL)
        async with working(rich):
            assert await run.text(timeout="60s") == "paid for"


@pytest.mark.usefixtures("keyless")
async def test_a_script_answers_for_a_real_model_at_its_price(make_app: MakeApp) -> None:
    hf = make_app()
    agent = hf.agent("paid", model=MODEL)
    hf.script(MODEL, Script(say("for nothing")))
    result = await agent.run("Go")
    assert result.text == "for nothing"
    assert result.usage.cost > 0


@pytest.mark.usefixtures("keyless")
@pytest.mark.parametrize("model", [MODEL, "scripted:theirs"])
async def test_a_stored_agent_is_not_adopted_without_its_key_or_script(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    hf = make_app(embedded=False)
    paid, free = await hf.agents.create("paid", model=model), await hf.agents.create("free", model="scripted:")
    run = await hf.agents[paid.id].enqueue("Go")
    await hf.agents[free.id].enqueue("Go")
    with caplog.at_level(logging.WARNING, "holdfast.agents"):
        async with working(hf):
            await (await hf.agents[free.id].enqueue("Go")).result()
            assert f"no live worker has a key for model {model}" in str(await run.why())
            await hf.agents[free.id].enqueue("Go", require_worker=True)  # what is adopted is registered too
    assert ((await run.refresh()).state, await outcomes(hf, run.id)) == ("pending", [])
    assert any("'paid'" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("keyless")
async def test_without_the_sdk_a_model_cannot_be_asked_either(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    monkeypatch.setattr("holdfast.models.anthropic.sdk_is_there", lambda: False)
    hf = make_app(embedded=False)
    hf.agent("paid", model=MODEL)
    assert how_to_install("anthropic") in (core_of(hf).book.lack(MODEL) or "")
    assert core_of(hf).book.lack("scripted:") is None
    assert "agent:paid" not in core_of(hf).registry.capabilities()


@pytest.mark.usefixtures("keyless")
async def test_a_worker_lacks_nothing_for_agents_that_it_does_not_serve(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    hf = make_app(embedded=False)
    run = await hf.agent("paid", model=MODEL).enqueue("Go")
    hf.agent("free", model="scripted:")
    with caplog.at_level(logging.WARNING, "holdfast.agents"):
        async with working(hf, Role(only={"agent": ("free",)})) as worker:
            await worker.warmed.wait()
            why = str(await run.why())
    assert ("key" in why, "agent:paid" in why) == (False, True), why
    assert "'paid'" not in caplog.text


@pytest.mark.usefixtures("keyless")
async def test_a_worker_of_a_user_without_a_home_starts_all_the_same(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers run under a number that no list of users knows. There is no key then, and plain jobs need none."""

    def unknown(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    hf = make_app(embedded=False)
    hf.agent("paid", model=MODEL)

    @hf.job
    async def job() -> str:
        return "done"

    async with working(hf):
        assert await (await job.enqueue()).result() == "done"
    assert "lacks:agent:paid" in core_of(hf).registry.capabilities()


@pytest.mark.usefixtures("keyless")
async def test_a_run_with_a_model_of_its_own_is_handed_back_ever_more_rarely(labs: Labs) -> None:
    """The worker serves the agent, and cannot ask the model that this run was given."""
    hf = Holdfast("sqlite://nowhere.db", embedded=False)
    agent = hf.agent("free", model="scripted:")
    lab = await labs.use(hf)
    run = await agent.enqueue("Go", model=MODEL)
    begun, pauses = lab.clock.wall_us(), []
    while lab.clock.wall_us() - begun < 3_600_000_000:
        await lab.drain()
        row = await hf.jobs.get(run.id)
        assert row.due_at is not None
        pauses.append(microseconds(row.due_at) - lab.clock.wall_us())
        await lab.clock.advance(f"{pauses[-1]}us")
    assert (run.state, pauses[0] < 6_000_000, pauses[-1] >= 300_000_000) == ("pending", True, True)
    assert len(pauses) < 30
    assert {attempt.outcome for attempt in await hf.jobs.attempts(run.id)} == {"parked"}
    assert f"has no key for model {MODEL}" in str(await run.why())
    assert await run.turns() == []
    core_of(hf).book.substitute = None
    await run.cancel()
    assert (await run.refresh()).state == "cancelled"


@pytest.mark.usefixtures("keyless")
async def test_a_run_that_was_handed_back_is_taken_up_by_a_worker_with_the_key(
    labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast("sqlite://nowhere.db", embedded=False)
    agent = hf.agent("free", model="scripted:")
    async with simulator(script=Script(say("paid for"))) as provider:
        lab = await labs.use(hf)
        run = await agent.enqueue("Go", model=MODEL)
        await lab.drain()
        assert run.state == "pending"
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
        hf.settings = hf.settings.override({"provider_url": provider.url})
        (row,) = await settle(lab, run)
        assert (row.state, await run.text()) == ("completed", "paid for")


@pytest.mark.usefixtures("keyless")
async def test_an_embedded_app_serves_a_run_whose_own_model_needs_no_key(make_app: MakeApp) -> None:
    hf = make_app()
    agent = hf.agent("paid", model=MODEL)
    with pytest.raises(UsageError, match="Set ANTHROPIC_API_KEY"):
        await agent.run("Go")
    assert (await agent.run("Go", model="scripted:")).outcome == "answered"


SECRETS = ("hunter2", "mallory", "sesame")


async def test_credentials_in_a_provider_s_url_are_shown_nowhere(
    provided: Labs, caplog: pytest.LogCaptureFixture
) -> None:
    rules = [{"do": {"status": 401}}]
    async with simulator(script=Script(say("in")), rules=rules) as provider:
        url = provider.url.replace("://", "://mallory:hunter2@") + "/?key=sesame"
        hf = Holdfast("sqlite://nowhere.db", embedded=False)
        hf.settings = hf.settings.override({"provider_url": url})
        agent = hf.agent("a", model=MODEL)
        lab = await provided.use(hf)
        run = await agent.enqueue("Go")
        with caplog.at_level(logging.DEBUG):
            await lab.drain()
        shown = [
            str(await run.why()),
            caplog.text,
            str(await run.events()),
            str(await run.turns()),
            core_of(hf).book.credential(MODEL),
        ]
        (lane,) = await hf.lanes.list()
        shown.append(lane.name)
        for text in shown:
            assert not any(secret in text for secret in SECRETS), text
        assert provider.url in lane.name
        (sent,) = [line for line in provider.lines if line["event"] == "sent"]
        assert sent["model"] == MODEL


def test_an_account_has_one_name_and_another_account_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")

    def named(url: str) -> str:
        hf = Holdfast("sqlite://nowhere.db")
        hf.settings = hf.settings.override({"provider_url": url})
        return core_of(hf).book.credential(MODEL)

    plain, one = named("https://gate.example/v1"), named("https://ann:pw@gate.example/v1?k=1")
    assert one == named("https://ann:pw@gate.example/v1?k=1")
    assert (
        len({plain, one, named("https://bob:pw@gate.example/v1?k=1"), named("https://ann:pw@gate.example/v1?k=2")}) == 4
    )
    assert {name.partition("#")[0] for name in (plain, one)} == {"https://gate.example/v1"}
    assert plain == "https://gate.example/v1#076fb033", "as it was before"


async def test_settings_are_listed_without_the_credentials_of_the_provider_s_url() -> None:
    from holdfast.values.queues import shown_setting

    assert shown_setting("provider_url", "https://ann:pw@gate.example/v1?k=1") == "https://gate.example/v1"


CHILD = """
import asyncio, json, sys
from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.workers.role import Role

hf = Holdfast("sqlite:///{file}", embedded=False)
hf.agent("a", model="{model}")

@hf.job
async def job() -> bool:
    return "anthropic" in sys.modules

async def main():
    before = "anthropic" in sys.modules
    await core_of(hf).runtime().open()
    worker = core_of(hf).make_worker(Role())
    await worker.start()
    started = "anthropic" in sys.modules
    await worker.warmed.wait()
    print(json.dumps([before, started, "anthropic" in sys.modules]))
    await worker.stop()
    await hf.close()

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize(("model", "warmed"), [(MODEL, True), ("scripted:", False)])
def test_a_worker_imports_the_sdk_when_it_starts_and_not_before(tmp_path: Any, model: str, warmed: bool) -> None:
    text = CHILD.format(file=tmp_path / "h.db", model=model)
    env = {"ANTHROPIC_API_KEY": "sk-simulated", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, env=env, cwd=tmp_path)
    assert json.loads(done.stdout) == [False, False, warmed], "plain jobs need not wait for it"


READY = """
import asyncio, sys
from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.workers.role import Role

hf = Holdfast("sqlite:///{file}", embedded=False)
hf.agent("a", model={model!r})

@hf.job
async def job() -> None: ...

async def main():
    await core_of(hf).runtime().open()
    worker = core_of(hf).make_worker(Role())

    def ready():
        print("anthropic" in sys.modules)
        stopping.append(asyncio.ensure_future(worker.stop()))

    stopping = []
    await worker.run(ready=ready)
    await hf.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(("model", "imported"), [(MODEL, "True"), ("scripted:", "False")])
def test_a_worker_is_ready_when_the_sdk_of_its_agents_is_imported(tmp_path: Any, model: str, imported: str) -> None:
    text = READY.format(file=tmp_path / "h.db", model=model)
    env = {"ANTHROPIC_API_KEY": "sk-simulated", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, env=env, cwd=tmp_path)
    assert done.stdout.decode().strip() == imported


async def test_an_sdk_that_cannot_be_imported_does_not_keep_a_worker_from_its_jobs(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise ImportError("no module named httpx2")

    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    monkeypatch.setattr("holdfast.models.anthropic._imported", broken)
    hf = make_app(embedded=False)
    hf.agent("a", model=MODEL)

    @hf.job
    async def job() -> str:
        return "done"

    with caplog.at_level(logging.WARNING, "holdfast.agents"):
        async with working(hf) as worker:

            async def told() -> bool:
                return worker.warmed.is_set()

            await eventually(told)
            assert await (await job.enqueue()).result() == "done"
    assert "no module named httpx2" in caplog.text
