"""Why something waits, for who sees a single tenant: no name of a worker, a host, a process or another tenant."""

from __future__ import annotations

import ast
import socket
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.agents.runs.why import FOR_TENANTS, OWN, sentence_for_tenant
from holdfast.http.api.seen import Seen
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.script import Script, say
from holdfast.values.jobs import ReasonRecord
from holdfast.workers.role import Role
from tests.http.browsing import HTML
from tests.http.client import Client
from tests.support.apps import MakeApp, eventually, in_state, working

API = "/api/v1"
SECRETS = ("worker-7f3a", "db-host-12", "4242", "other-tenant", "batch_01", "sk-credential")


def gates() -> set[str]:
    """Every gate that any part of the product makes a reason of."""
    found: set[str] = set()
    for file in Path(holdfast.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason":
                first = node.args[0]
                assert isinstance(first, ast.Constant), f"{file}:{node.lineno}: name the gate of this reason"
                found.add(str(first.value))
    return found


@pytest.mark.long
def test_every_gate_has_a_rule_for_tenants() -> None:
    """A new reason fails here until it is known what a tenant may read of it."""
    assert gates() == OWN | FOR_TENANTS.keys()
    assert not OWN & FOR_TENANTS.keys()


@pytest.mark.parametrize("gate", [*sorted(FOR_TENANTS), "one of a later release"])
async def test_nothing_of_the_fleet_is_in_the_sentence_of_a_gate(hf: Holdfast, gate: str) -> None:
    reason = ReasonRecord(gate, f"it is held by {' and '.join(SECRETS)}")
    for seen in (
        Seen(hf, Principal("eve", "viewer", "acme"), "acme", {}),
        Seen(hf, Principal("eve", "viewer"), None, {"user": "eve"}),
    ):
        (shown,) = seen.reasons([reason])
        assert (shown.gate, shown.until) == (gate, None)
        assert not [each for each in SECRETS if each in shown.sentence]
    assert Seen(hf, Principal("ann", "viewer"), None, {}).reasons([reason]) == [reason]


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


@pytest.mark.parametrize("gate", sorted(OWN))
def test_what_is_the_tenants_own_is_said_in_full(gate: str) -> None:
    assert sentence_for_tenant(gate, "it waits for tool look_up") == "it waits for tool look_up"


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


@pytest.mark.parametrize("bound", [{"tenant": "acme"}, {"metadata": {"user": "eve"}}])
async def test_who_sees_no_fleet_is_not_told_where_the_database_is(hf: Holdfast, bound: dict[str, Any]) -> None:
    told = await Client(hf.web(who=lambda _: Principal("eve", "admin"), **bound)).get(f"{API}/system")
    assert "database" not in told.json
    assert "database" in (await Client(hf.web(who=lambda _: Principal("ann", "admin"))).get(f"{API}/system")).json
