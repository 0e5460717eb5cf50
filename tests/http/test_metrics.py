"""What Prometheus reads, and that the dashboard and the alerts name nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http import web
from tests.http.client import Client
from tests.http.test_api import guide
from tests.http.test_security import as_principal

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMES = re.compile(r"\bholdfast_\w+")


async def measured(hf: Holdfast) -> dict[str, dict[tuple[str, ...], float]]:
    prometheus = Principal("prometheus", "viewer", scopes=frozenset({"metrics"}))
    answer = await Client(web(hf, who=lambda _: prometheus)).get("/metrics")
    assert answer.status == 200, answer.body
    families = text_string_to_metric_families(answer.body.decode())
    return {family.name: {tuple(each.labels.values()): each.value for each in family.samples} for family in families}


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


async def test_dashboard_and_alerts_name_metrics_that_exist(hf: Holdfast) -> None:
    await guide(hf).enqueue("Hi")
    known = set(await measured(hf))
    for file in ("grafana.json", "alerts.yml"):
        named = set(NAMES.findall((DEPLOY / file).read_text()))
        assert named, file
        assert named <= known, file
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


async def test_metrics_have_a_scope_of_their_own(hf: Holdfast) -> None:
    for principal, status in (
        (None, 401),
        (Principal("ann", "admin"), 403),
        (Principal("ann", "admin", "acme", frozenset({"metrics"})), 404),
    ):
        client = as_principal(hf, principal)
        assert (await client.get("/metrics")).status == status
