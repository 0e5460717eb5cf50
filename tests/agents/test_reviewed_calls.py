"""What a review found in how agents are called: what does not fit is said at once, and in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import apsw
import psycopg
import pytest
from pydantic import BaseModel, ConfigDict

from holdfast import Holdfast, Limits, RunFailed
from holdfast.agents.book import NO_KEY
from holdfast.agents.handles import Run
from holdfast.errors import NotFound, UsageError
from holdfast.models.script import Step, say
from tests.conftest import Place
from tests.support.agents import MODEL, scripted
from tests.support.apps import PATIENCE, MakeApp, working


class Bill(BaseModel):
    model_config = ConfigDict(strict=True)

    total: Decimal


async def _billed(app: Holdfast, text: str) -> Bill:
    return (await app.agent("a", model=scripted(app, say(text)), output=Bill).run("Go")).output


async def test_an_answer_is_read_as_it_was_written(hf: Holdfast) -> None:
    assert await _billed(hf, '{"total": "12.10"}') == Bill(total=Decimal("12.10"))


async def test_no_digit_is_lost_on_the_way(hf: Holdfast) -> None:
    assert (await _billed(hf, '{"total": "12345678901234567890.12"}')).total == Decimal("12345678901234567890.12")


@pytest.mark.parametrize("text", ['{"nope": 1}', "that is no JSON"])
async def test_an_answer_that_does_not_fit_is_said_so(hf: Holdfast, text: str) -> None:
    result = await hf.agent("a", model=scripted(hf, say(text)), output=Bill).run("Go")
    with pytest.raises(RunFailed, match="not of the type that was asked for") as refused:
        _ = result.output
    problem = refused.value
    assert (problem.run, problem.error_type, problem.type) == (result.run_id, "output_error", "output_error")
    assert result.text == text


async def test_a_failed_run_says_that_it_is_one(hf: Holdfast) -> None:
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    await run.cancel("not needed")
    with pytest.raises(RunFailed, match=f"run {run.id} ended as cancelled: .*not needed") as refused:
        await run.result()
    problem = refused.value
    assert (problem.run, problem.job, problem.state) == (run.id, run.id, "cancelled")
    assert problem.error_type == problem.type


async def test_a_failed_job_is_no_run(hf: Holdfast) -> None:
    @hf.job
    def work() -> None:
        raise ValueError("no")

    job = await work.enqueue()
    await job.cancel()
    with pytest.raises(RunFailed, match=f"^job {job.id} ended as cancelled") as refused:
        await job.result()
    assert refused.value.run is None


async def test_a_session_by_its_id_has_the_tenant_it_has(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    made = await hf.session("k", tenant="acme")
    run = await hf.sessions[made.id].send("Go", agent)
    assert ((await run.refresh()).tenant, run.session_id) == ("acme", made.id)
    assert (await (await agent.enqueue("Go", session=hf.sessions[made.id])).refresh()).tenant == "acme"
    with pytest.raises(UsageError, match="does not belong to tenant"):
        await hf.sessions[made.id].send("Go", agent, tenant="other")
    with pytest.raises(NotFound):
        await hf.tenant("other").sessions[made.id].send("Go", agent)
    with pytest.raises(NotFound):
        await hf.sessions["018f0000-0000-7000-8000-000000000000"].send("Go", agent)


async def test_a_session_that_was_rolled_back_is_made_at_its_next_use(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await hf.runtime().open()
    for commit in (False, True):
        async with transaction(place, commit=commit) as tx:
            session = await hf.session(f"s {commit}", tx=tx)
        run = await agent.enqueue("Go", session=session)
        assert run.session_id == session.id == (await hf.sessions.get(f"s {commit}")).id
        assert (await session.send("Go on", agent)).session_id == session.id
        assert len(await session.runs()) == 2


@asynccontextmanager
async def transaction(place: Place, *, commit: bool) -> AsyncIterator[Any]:
    if place.url.startswith("sqlite"):
        file = apsw.Connection(place.url.removeprefix("sqlite:///"))
        file.execute("begin immediate")
        yield file
        file.execute("commit" if commit else "rollback")
        file.close()
        return
    connection = await psycopg.AsyncConnection.connect(place.direct)
    yield connection
    await (connection.commit() if commit else connection.rollback())
    await connection.close()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": "nonsense-model"}, "nonsense-model"),
    ({"model": 3}, "model of agent 'z' is the name of a model, not 3"),
    ({"model": MODEL, "options": {"temperature": 0.5, "thinking": {"type": "nonsense"}}}, MODEL),
    ({"agents": ["a"]}, "agents of agent 'z' are agents, .* not 'a'"),
    ({"agents": "a"}, "agents of agent 'z' is a list of"),
    ({"output": int}, "output of agent 'z' is a JSON schema, as a dict, not <class 'int'>"),
    ({"limits": {"turn": 3}}, "limits have no 'turn'"),
    ({"limits": 3}, "limits of agent 'z' is Limits"),
    ({"max_tokens": "many"}, "max_tokens of agent 'z' is a whole number, not 'many'"),
    ({"tools": [int]}, "tools of agent 'z' are names"),
    ({"tools": ["nothing"]}, "no tool 'nothing'"),
]


@pytest.mark.parametrize(("fields", "reason"), WRONG, ids=[f"{list(f)[-1]} {n}" for n, (f, _) in enumerate(WRONG)])
async def test_an_agent_of_wrong_values_is_refused(hf: Holdfast, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        await hf.agents.create("z", **{"model": "scripted:", **fields})
    assert await hf.agents.list() == []
    await hf.agents.create("z", model="scripted:")
    with pytest.raises(UsageError, match=reason):
        await hf.agents.update("z", **fields)
    assert (await hf.agents.get("z")).version == 1


async def test_an_agent_of_right_values_is_taken(hf: Holdfast) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    below = hf.agent("below", model=scripted(hf, say("below")))
    row = await hf.agents.create(
        "z", model=scripted(hf, say("done")), tools=["look"], agents=[below], limits={"turns": 3}, requires=[]
    )
    spec = (await hf.agents[row.id].load()).spec
    assert (spec.limits, [tool.name for tool in spec.tools]) == (Limits(turns=3), ["look"])
    assert [each.agent for each in spec.agents] == [(await hf.agents.get("below")).id]
    assert (await hf.agents[row.id].run("Go")).text == "done"
    with pytest.raises(UsageError, match="needs a model"):
        await hf.agents.create("y")


async def test_a_model_of_a_run_is_checked(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model="scripted:")
    with pytest.raises(UsageError, match="nonsense-model"):
        await agent.enqueue("Go", model="nonsense-model")
    with pytest.raises(UsageError, match="model is the name of one, not int"):
        await agent.enqueue("Go", model=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="limits is Limits"):
        await agent.enqueue("Go", limits={"turns": 3})  # type: ignore[arg-type]
    assert await hf.runs.list() == []


@pytest.mark.parametrize("name", ["research agent", "gpu!", "ü", "a" * 129])
async def test_an_agent_that_is_called_has_a_name_for_a_tool(hf: Holdfast, name: str) -> None:
    called = hf.agent(name, model="scripted:")
    with pytest.raises(UsageError, match="cannot be called by agent 'lead' under its name"):
        hf.agent("lead", model="scripted:", agents=[called])
    with pytest.raises(UsageError, match="cannot be called by agent 'lead' under its name"):
        await hf.agents.create("lead", model="scripted:", agents=[called])
    with pytest.raises(UsageError, match=r"are what hf\.agent made, not 'called'"):
        hf.agent("lead", model="scripted:", agents=["called"])  # type: ignore[list-item]


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "PROFILE", "CONFIG_DIR"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.mark.usefixtures("keyless")
async def test_without_a_key_the_call_says_what_to_set(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="Set ANTHROPIC_API_KEY"):
        await hf.agent("a", model=MODEL).run("Go")
    assert await hf.runs.list() == []


@pytest.mark.usefixtures("keyless")
async def test_without_a_key_a_run_fails_and_nobody_waits(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    run = await hf.agent("a", model=MODEL).enqueue("Go")
    async with working(hf), asyncio.timeout(PATIENCE):
        with pytest.raises(RunFailed) as refused:
            await run.result()
    assert NO_KEY in str(refused.value)
    (turn,) = await run.turns()
    assert (turn.state, turn.unknown) == ("failed", 0)


@pytest.mark.usefixtures("keyless")
async def test_a_key_a_place_or_a_profile_is_enough(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = make_app()
    assert hf.book.lacks_key(MODEL)
    assert not hf.book.lacks_key("scripted:")
    assert not make_app(provider_url="http://127.0.0.1:9").book.lacks_key(MODEL)
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "PROFILE"):
        with monkeypatch.context() as patch:
            patch.setenv(f"ANTHROPIC_{name}", "x")
            assert not hf.book.lacks_key(MODEL)


async def test_a_reader_without_a_loop_is_sent_no_more_than_it_takes(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app()
    steps: list[Step] = [say("word " * 200)]
    agent = hf.agent("a", model=scripted(hf, *steps))

    def read() -> tuple[int, int, list[int]]:
        run = agent.enqueue_sync("Go")
        hf.call(hf.ensure_worker())
        run.result_sync()
        given: list[int] = []
        original = Run.stream

        async def counted(self: Run[Any], after: int = 0) -> Any:
            async for event in original(self, after):
                given.append(event.seq)
                yield event

        monkeypatch.setattr(Run, "stream", counted)
        events = run.stream_sync()
        first, second = next(events), next(events)
        taken = len(given)
        events.close()
        hf.close_sync()
        return taken, second.seq - first.seq, given

    taken, apart, given = await asyncio.to_thread(read)
    assert (taken, apart, given) == (2, 1, [1, 2])


async def test_a_tenant_asks_why_of_its_own_runs(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    run = await hf.agent("a", model="scripted:").enqueue("Go", tenant="acme")
    assert await hf.tenant("acme").why(run.id) == await run.why()
    with pytest.raises(NotFound):
        await hf.tenant("other").why(run.id)
