"""What Prometheus reads, and that the dashboard and the alerts name nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.errors import LeaseLost
from holdfast.http import web
from holdfast.models.script import Script, call, say
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.http.client import Client
from tests.http.test_api import guide
from tests.http.test_security import as_principal
from tests.support.apps import MakeApp, working
from tests.support.past_kernel import query

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMES = re.compile(r"\bholdfast_\w+")


async def measured(hf: Holdfast) -> dict[str, dict[tuple[str, ...], float]]:
    prometheus = Principal("prometheus", "viewer", scopes=frozenset({"metrics"}))
    answer = await Client(web(hf, who=lambda _: prometheus)).get("/metrics")
    assert answer.status == 200, answer.body
    families = list(text_string_to_metric_families(answer.body.decode()))
    samples = [each for family in families for each in family.samples]
    names = {each.name for each in samples} | {each.name for each in families if not each.samples}
    return {name: {tuple(each.labels.values()): each.value for each in samples if each.name == name} for name in names}


async def test_queues_agents_and_workers_are_measured(hf: Holdfast) -> None:
    @hf.job(name="paint", queue="images")
    async def paint() -> None: ...

    await paint.enqueue_many([()] * 3)
    await guide(hf).enqueue("Hi", tenant="acme")
    found = await measured(hf)
    assert found["holdfast_jobs"]["images", "pending"] == 3
    assert found["holdfast_oldest_pending_seconds"]["images",] > 0
    assert found["holdfast_runs_open"]["guide",] == 1
    assert found["holdfast_workers"][()] == 0
    assert "acme" not in str(found)


async def test_what_ended_is_timed_and_counted(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)

    @hf.job(name="paint", queue="images")
    async def paint() -> None: ...

    @hf.tool
    async def look_up(word: str) -> str:
        """Look a word up."""
        return word

    hf.script("talk", Script(call("look_up", word="cat"), say("A cat.")))
    agent = hf.agent("talker", model="scripted:talk", tools=[look_up])
    jobs, run = await paint.enqueue_many([()] * 3), await agent.enqueue("Go", tenant="acme")
    async with working(hf):
        for job in jobs:
            await job.result()
        await run.result()
        found = await measured(hf)
    for name in ("holdfast_job_wait_seconds", "holdfast_job_duration_seconds"):
        times = [found[name][quantile, "images"] for quantile in ("0.5", "0.95", "0.99")]
        assert times == sorted(times)
        assert times[0] >= 0
    assert found["holdfast_job_wait_seconds"]["0.5", "images"] > 0
    assert found["holdfast_turn_duration_seconds"]["scripted:talk", "0.99"] > 0
    assert found["holdfast_turns_last_minute"]["talker",] == 2
    assert found["holdfast_tokens_last_minute"]["talker", "output"] > 0
    assert found["holdfast_jobs_ended_last_minute"]["images", "succeeded"] == 3
    assert found["holdfast_workers"][()] == 1
    assert "acme" not in str(found)


async def test_lost_leases_and_refused_writes_are_counted(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)

    @hf.job(name="paint")
    async def paint() -> None: ...

    await paint.enqueue()
    async with hf.broker(capabilities=["job:paint"], renewal="manual") as broker:
        lease = await broker.claim()
        assert lease is not None
        query(place, "update holdfast.lease set lease_until = 1")
        await core_of(hf).make_worker(Role(until="empty")).run()
        with pytest.raises(LeaseLost):
            await lease.complete()
        found = await measured(hf)
    assert found["holdfast_leases_expired_total"][()] == 1
    assert found["holdfast_stale_writes_refused_total"][()] == 1


async def test_dashboard_and_alerts_name_metrics_that_exist(hf: Holdfast) -> None:
    await guide(hf).run("Hi")
    known = set(await measured(hf))
    for file in ("grafana.json", "alerts.yml"):
        named = set(NAMES.findall((DEPLOY / file).read_text()))
        assert named, file
        assert named <= known, file
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    drawn = NAMES.findall(json.dumps(panels))
    assert known - set(drawn) == {"holdfast_queue_paused"}, "what is measured is drawn"


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> str | None:
    """Where it is; None, and a line that says so, where it cannot be had. It comes with Debian's prometheus."""
    if shutil.which("promtool") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        for words in (["update"], ["install", "-y", "--no-install-recommends", "prometheus"]):
            subprocess.run(["apt-get", "-q", *words], check=False, capture_output=True)
    path = shutil.which("promtool")
    if path is None:
        reporter = request.config.pluginmanager.get_plugin("terminalreporter")
        line = "\nthe alert rules were NOT checked: promtool is not installed, and cannot be installed here"
        print(line, file=sys.__stderr__) if reporter is None else reporter.write_line(line)
    return path


def test_promtool_accepts_the_alert_rules(promtool: str | None) -> None:
    if promtool is not None:
        command = [promtool, "check", "rules", str(DEPLOY / "alerts.yml")]
        checked = subprocess.run(command, check=False, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_metrics_have_a_scope_of_their_own(hf: Holdfast) -> None:
    for principal, status in (
        (None, 401),
        (Principal("ann", "admin"), 403),
        (Principal("ann", "admin", "acme", frozenset({"metrics"})), 404),
    ):
        client = as_principal(hf, principal)
        assert (await client.get("/metrics")).status == status
