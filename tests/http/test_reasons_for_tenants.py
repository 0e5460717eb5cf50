"""Why something waits, for who sees a single tenant: no name of a worker, a host, a process or another tenant."""

from __future__ import annotations

import importlib
import pkgutil
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.agents.api.waterfall import HeldInterval, waits
from holdfast.agents.lanes import close_lane, lane_of
from holdfast.app import core_of
from holdfast.http.api.answers import without_fleet
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.script import Script, say
from holdfast.models.simulator import simulator
from holdfast.reasons import ACCOUNT_REFUSED, FOR_TENANTS, OWN, Gate, Reason
from holdfast.values.jobs import FailureRecord, ReasonRecord, Why, why_of
from holdfast.workers.role import Role
from tests.http.browsing import HTML
from tests.http.client import Client
from tests.http.matrix import BROKEN
from tests.support.apps import MakeApp, eventually, in_state, working

API = "/api/v1"
SECRET = "worker-7f3a on db-host-12"
ACCOUNT = "organization org_OF_ACME"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EVE = Principal("eve", "operator", "acme")


def kinds() -> list[type[Reason]]:
    """Every reason that any part of the product can give."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if module.name.endswith(("why", "lanes", "keys", "fallback")):
            importlib.import_module(module.name)
    names = {(each.__module__, each.__name__) for each in Reason.__subclasses__()}
    return [getattr(sys.modules[module], name) for module, name in sorted(names) if module.startswith("holdfast.")]


def example(kind: type[Reason]) -> Reason:
    """One with a secret in each part that is a text."""
    given: dict[str, Any] = {}
    for field in fields(kind):
        declared = str(field.type)
        if declared.startswith("str"):
            given[field.name] = SECRET
        elif declared.startswith("Sequence[tuple"):
            given[field.name] = [(SECRET, SECRET)]
        elif declared.startswith("Sequence"):
            given[field.name] = [SECRET]
        elif declared.startswith("Mapping"):
            given[field.name] = {"reason": SECRET, "question": SECRET}
        elif field.default is MISSING:
            given[field.name] = 1
    return kind(**given)


def test_every_gate_has_a_reason_and_a_sentence_for_tenants() -> None:
    """A new gate fails here until it is known what a tenant may read of it."""
    assert {each.gate for each in kinds()} == {*Gate}
    assert {*Gate} == OWN | FOR_TENANTS.keys()
    assert not OWN & FOR_TENANTS.keys()


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_a_tenant_reads_no_part_of_a_reason_that_is_not_its_own(kind: type[Reason]) -> None:
    reason = example(kind)
    (whole,), (told,) = why_of([reason]), why_of([reason], for_tenant=True)
    assert (told.gate, told.until) == (whole.gate, whole.until) == (kind.gate, whole.until)
    assert (SECRET in whole.sentence) is any("str" in str(field.type) for field in fields(kind))
    if kind.gate in OWN:
        assert told == whole
    else:
        assert told.sentence == FOR_TENANTS[kind.gate]
        assert SECRET not in told.sentence


def test_a_gate_that_nobody_has_thought_of_says_nothing() -> None:
    class Overlooked(Reason):
        gate = "of a later release"  # type: ignore[assignment]

        @property
        def sentence(self) -> str:
            return SECRET

    (told,) = why_of([Overlooked()], for_tenant=True)
    assert told.sentence == "something that belongs to no tenant holds it back"


async def ask(client: Client, run: str) -> list[str]:
    """What a tenant's viewer is told of a run, in every place that says why it waits."""
    paths = (
        *(f"{API}/runs/{run}/why", f"{API}/jobs/{run}/why", f"{API}/runs/{run}/waterfall", f"{API}/runs/{run}"),
        *(f"{API}/jobs/{run}/attempts", f"/runs/{run}", f"/why?id={run}", f"/jobs/{run}", "/", "/runs", "/jobs"),
    )
    found = []
    for path in paths:
        place, _, query = path.partition("?")
        answer = await client.get(place, **dict([query.split("=")] if query else []))
        assert answer.status == 200, (path, answer.body[-300:])
        found.append(f"{path}: {answer.body.decode()}")
    return found


@pytest.mark.parametrize("by", ["tenant", "metadata"])
async def test_a_viewer_of_a_tenant_reads_no_worker_wherever_a_reason_is_shown(make_app: MakeApp, by: str) -> None:
    """A run whose workers lack the key of its model, while it is held by nobody, and one that a worker has."""
    hf = make_app(embedded=False)
    hf.script("a", Script(say("hello")))
    agent = hf.agent("a", model="claude-opus-5-5")
    acme = hf.tenant("acme")
    told: dict[str, Any] = {"tenant": "acme"} if by == "tenant" else {"metadata": {"user": "eve"}}
    client = Client(hf.web(who=lambda _: Principal("eve", "viewer"), **told), headers=HTML)
    session = await acme.session("s", metadata={"user": "eve"})
    run = await acme.enqueue(agent, "x", session=session)
    async with working(hf, Role(name="worker-7f3a")) as worker:

        async def explained() -> bool:
            return worker.id in str(await hf.why(run.id)) or "key" in str(await hf.why(run.id))

        await eventually(explained)
        if by == "tenant":
            found = await ask(client, run.id)
        else:
            why = await client.get(f"{API}/runs/{run.id}/why")
            fall = await client.get(f"{API}/runs/{run.id}/waterfall")
            found = [f"{each.status} {each.body.decode()}" for each in (why, fall)]
        for text in found:
            for name in (worker.id, "worker-7f3a", socket.gethostname()):
                assert name not in text, (name, text[:100])


async def test_a_tenant_reads_no_file_and_no_line_of_the_program(hf: Holdfast) -> None:
    """A failure has its message for a tenant, and for who runs the program its traceback too."""

    @hf.job(name="fails", retry=RetryPolicy.none())
    async def fails() -> None:
        raise ValueError("it fell")

    job = await hf.enqueue("fails", {}, tenant="acme")
    async with working(hf):
        await in_state(hf, job.id, "failed")
    eve, ann = Principal("eve", "viewer", "acme"), Principal("ann", "viewer")
    for who, shown in ((lambda _: eve, False), (lambda _: ann, True)):
        client = Client(hf.web(who=who), headers=HTML)
        for path in ("", "/attempts", "/why"):
            told = (await client.get(f"{API}/jobs/{job.id}{path}")).body.decode()
            assert ("it fell" in told or path == "/attempts", "test_reasons_for_tenants" in told) == (True, shown), path
        listed = (await client.get(f"{API}/jobs")).json["items"]
        assert ["trace" in each["error"] for each in listed] == [shown]


async def test_a_tenant_reads_no_file_of_the_program_about_its_execution(hf: Holdfast, tmp_path: Path) -> None:
    """Whether it is shown, cancelled or resumed, by programs and on its page."""

    def fail(action: str, context: dict[str, Any]) -> Any:
        raise ValueError("it fell")

    (tmp_path / "broken.yml").write_text(BROKEN)
    hf.machine(tmp_path / "broken.yml", hooks=fail)
    ann, eve = Client(hf.web(who=lambda _: Principal("ann", "viewer"))), Client(hf.web(who=lambda _: EVE))
    id = (await eve.post(f"{API}/executions", {"machine": "broken", "input": {}})).json["id"]
    async with working(hf):
        await in_state(hf, id, "failed")
    assert "trace" in (await ann.get(f"{API}/executions/{id}")).json["error"]
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/resume")):
        answer = await eve.call(method, f"{API}/executions/{id}{path}")
        assert answer.status < 300, answer.body
        assert __file__ not in answer.body.decode(), path
        assert path or answer.json["error"].keys() == {"type", "message"}, answer.json["error"]


async def test_a_tenant_reads_no_lane_and_no_account_of_a_provider(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of models that a run gave up or asked again, nor of one behind whose lane it waits: in no answer, on no
    page, in no stream."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    closed, refusing, slow, denied = "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-5"
    rules = [
        {"match": {"model": refusing}, "do": {"status": 401, "message": f"{ACCOUNT} is disabled"}},
        {"match": {"model": slow, "nth": 1}, "do": {"status": 429, "message": ACCOUNT}},
        {
            "match": {"model": denied},
            "do": {"status": 403, "type": "permission_error", "message": f"none for {ACCOUNT}"},
        },
    ]
    async with simulator(script=Script(say("done"), say("done")), rules=rules) as provider:
        hf = make_app(embedded=False, provider_url=provider.url)
        lane = lane_of(core_of(hf).book.credential(closed), closed)
        await core_of(hf).runtime().transact(close_lane, lane, None, person=True, reason=ACCOUNT)
        ended = await hf.agent("a", model=closed, fallbacks=[refusing, slow]).enqueue("Go", tenant="acme")
        waiting = await hf.agent("b", model=closed).enqueue("Go", tenant="acme")
        failed = await hf.agent("c", model=denied).enqueue("Go", tenant="acme")
        async with working(hf):
            assert await ended.text() == "done"
            await in_state(hf, waiting.id, "waiting")
            await in_state(hf, failed.id, "failed")
    ids = [ended.id, failed.id, waiting.id]
    ann, eve = (
        Client(hf.web(who=who), headers=HTML) for who in (lambda _: Principal("ann", "operator"), lambda _: EVE)
    )
    whole, told = [{path: text async for path, text in read_all(each, ids)} for each in (ann, eve)]
    for path, text in told.items():
        assert "org_OF" not in text, path
        assert lane not in text, path
    run, job = f"{API}/runs/{ended.id}", f"{API}/jobs/{ended.id}"
    for path in (f"{run}/events", f"{run}/stream", f"{run}/waterfall", f"{job}/attempts", f"/runs/{ended.id}"):
        assert "org_OF" in whole[path], path
    assert lane in whole[f"{API}/jobs/{waiting.id}"]
    assert FOR_TENANTS[Gate.LANE] in told[f"{run}/stream"]
    run, job = f"{API}/runs/{failed.id}", f"{API}/jobs/{failed.id}"
    for path in (run, job, f"{run}/why", f"{run}/stream", "/runs"):
        assert ("org_OF" in whole[path], "refuses calls of the account" in told[path]) == (True, True), path


def test_a_group_of_failures_names_no_account_to_a_tenant() -> None:
    named = {"subject": "runs", "kind": "a", "last_id": "x", "message": SECRET, "first_at": BEGIN, "last_at": BEGIN}
    group = FailureRecord(**named, error=ACCOUNT_REFUSED, count=1)  # type: ignore[arg-type]
    own = replace(group, error="processing_error")
    assert (SECRET in without_fleet(group).message, without_fleet(own)) == (False, own)


async def read_all(client: Client, ids: list[str]) -> AsyncIterator[tuple[str, str]]:
    """All that is said of some runs, by path."""
    below = {"runs": ("", "/turns", "/events", "/waterfall", "/why"), "jobs": ("", "/attempts", "/why")}
    paths = [f"{API}/{noun}/{id}{path}" for id in ids for noun in below for path in below[noun]]
    paths += [f"/{noun}/{id}" for id in ids for noun in below] + [f"/runs/{ids[0]}/events", "/runs", "/"]
    for path in [*paths, *(f"{API}/runs/{id}/stream" for id in ids[:-1])]:  # these have ended, and so do their streams
        answer = await client.get(path)
        assert answer.status == 200, (path, answer.body[-300:])
        yield path, answer.body.decode()


def test_a_tenant_reads_of_a_lost_worker_without_its_name() -> None:
    lost = HeldInterval(worker="", outcome="lost", error_type=None, message="", started_at=BEGIN, ended_at=BEGIN)
    (wait,) = waits(BEGIN, BEGIN + timedelta(seconds=5), BEGIN, [lost])
    assert wait.reason == "its worker was lost, and no other had taken it yet"


def test_what_is_left_for_a_tenant_keeps_its_type() -> None:
    why = Why([ReasonRecord(Gate.LEASED, "a worker is running it")])
    told = without_fleet({"why": why, "seen": frozenset({1}), "more": MappingProxyType({"error": {"trace": SECRET}})})
    assert (str(told["why"]), told["seen"], told["more"]) == ("a worker is running it", {1}, {"error": {}})


@pytest.mark.parametrize("bound", [{"tenant": "acme"}, {"metadata": {"user": "eve"}}])
async def test_who_sees_no_fleet_is_not_told_where_the_database_is(hf: Holdfast, bound: dict[str, Any]) -> None:
    told = await Client(hf.web(who=lambda _: Principal("eve", "admin"), **bound)).get(f"{API}/system")
    assert "database" not in told.json
    assert "database" in (await Client(hf.web(who=lambda _: Principal("ann", "admin"))).get(f"{API}/system")).json
