"""For orchestrators: how many workers a queue needs, at zero workers too, and manifests that Kubernetes takes."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import kubernetes_validate
import pytest
import yaml

from holdfast import Holdfast, Queue
from holdfast.app import core_of
from holdfast.cli.deploy import Deployment, as_deployment
from holdfast.errors import UsageError
from holdfast.kernel.pools import load, load_question
from holdfast.pools import WorkerPool
from tests.conftest import Place
from tests.support.apps import eventually
from tests.support.commands import holdfast

ASKED = ("deploy", "kubernetes", "shop:hf", "--image", "example.org/shop:1", "--queues", "render,it's")
SLOTS = ("--slots", "5", "--max", "7")


async def test_scale_answers_programs_and_people(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="draw", queue="render")
    def draw() -> None: ...

    await draw.enqueue_many([{} for _ in range(45)])
    answer = holdfast("scale", "render", "--url", place.url, "--slots", "10", "--json").json
    assert answer == {"queue": "render", "pending": 45, "running": 0, "desired": 5}
    limited = holdfast("scale", "render", "--url", place.url, "--slots", "10", "--max", "3")
    assert limited.lines == ["3 workers for queue render: 45 jobs can be claimed, 0 run"]
    await hf.queues.pause("render")
    assert holdfast("scale", "render", "--url", place.url, "--json").json["desired"] == 0
    assert "there is no queue 'rendr'" in holdfast("scale", "rendr", "--url", place.url).refused(2)
    await hf.close()


async def test_the_question_of_an_orchestrator_is_what_we_would_ask(postgres_url: str) -> None:
    hf = Holdfast(postgres_url, embedded=False)

    @hf.job(name="draw", queue="it's")
    def draw() -> None: ...

    @hf.job(name="other", queue="other")
    def other() -> None: ...

    await draw.enqueue_many([{} for _ in range(3)])
    await other.enqueue_many([{} for _ in range(4)])
    database = await core_of(hf).opened()
    connection = await asyncpg.connect(postgres_url)
    for queues, jobs in ((["it's"], 3), (["it's", "other"], 7), (None, 7), (["nowhere"], 0)):
        assert await connection.fetchval(load_question(queues, "holdfast")) == jobs
        assert await database.transact(load, queues) == jobs
    await hf.queues.pause("other")
    assert await connection.fetchval(load_question(None, "holdfast")) == 3
    await connection.close()
    await hf.close()


async def test_an_orchestrator_is_told_what_may_start_and_what_runs(place: Place) -> None:
    """Not what lanes hold back, nothing of paused queues, and below the threshold no more than run."""
    hf = Holdfast(place.url, embedded=False)
    hf.queue("single", Queue(concurrency=2))

    @hf.job(name="draw", queue="render")
    def draw() -> None: ...

    @hf.job(name="alone", queue="single")
    def alone() -> None: ...

    await draw.enqueue_many([{} for _ in range(6)])
    await alone.enqueue_many([{} for _ in range(9)])
    database = await core_of(hf).opened()

    async def told(*queues: str, threshold: int = 1) -> int:
        return await database.transact(load, queues or None, threshold=threshold)

    assert (await told("render"), await told("single"), await told()) == (6, 2, 8)
    assert (await told("render", threshold=6), await told("render", threshold=7)) == (6, 1)
    async with hf.broker(queues=["render"], slots=3) as broker:
        assert len(await broker.claim(3)) == 3
        assert (await told("render"), await told("render", threshold=4)) == (6, 3)
        await hf.queues.pause("render")
        assert await told("render") == 0
    await hf.close()


async def test_an_orchestrator_is_told_as_many_as_a_rate_lets_start(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    hf.queue("slow", Queue(rate="1/h burst 4"))
    database = await core_of(hf).opened()
    policy = WorkerPool(min=0, max=9, slots=1, scale_up_threshold=1)

    @hf.job(name="ask", queue="slow")
    def ask() -> None: ...

    async def told() -> tuple[int, int]:
        return await database.transact(load, ["slow"]), (await hf.pools.demand("slow", policy)).desired

    await ask.options(cost=2).enqueue_many([{} for _ in range(9)])
    assert await told() == (2, 2)
    await ask.enqueue_many([{} for _ in range(9)])
    assert await told() == (4, 4)
    async with hf.broker(queues=["slow"], slots=3) as broker:
        leases = await broker.claim(2)
        assert await told() == (2, 2)  # these two run, and the rate is used up
        for lease in leases:
            await lease.complete()
        await ask.enqueue_many([{} for _ in range(200)])
        assert await told() == (0, 0)
    await hf.close()


async def test_an_orchestrator_is_told_when_a_lane_opens_that_no_worker_looks_at(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    hf.queue("slow", Queue(rate="1/s"))
    database = await core_of(hf).opened()
    policy = WorkerPool(min=0, max=9, slots=1)

    @hf.job(name="ask", queue="slow")
    def ask() -> None: ...

    async def one_more() -> bool:
        return await database.transact(load, ["slow"]) == (await hf.pools.demand("slow", policy)).desired == 1

    await ask.enqueue_many([{} for _ in range(9)])
    async with hf.broker(queues=["slow"], slots=3) as broker:
        (lease,) = await broker.claim(3)  # the others are blocked now
        await lease.complete()
    await eventually(one_more)
    await hf.queues.pause("slow")
    assert not await one_more()
    await hf.close()


def printed(*options: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(holdfast(*ASKED, *SLOTS, *options).out))


def test_manifests_are_what_kubernetes_takes() -> None:
    deployment, authentication, scaled = printed()
    kubernetes_validate.validate(deployment, "1.30", strict=True)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"][:5] == ["holdfast", "worker", "shop:hf", "--id", "$(POD_NAME)"]
    assert container["command"][-4:] == ["--concurrency", "5", "--queues", "render,it's"]
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 40
    assert {"name": "HOLDFAST_DRAIN_GRACE", "value": "30s"} in container["env"]
    assert_is_scaled(scaled, "ScaledObject", authentication)
    assert scaled["spec"]["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}


def test_jobs_for_workers_that_end_are_what_kubernetes_takes() -> None:
    job, authentication, scaled = printed("--jobs")
    kubernetes_validate.validate(job, "1.30", strict=True)
    assert_is_scaled(scaled, "ScaledJob", authentication)
    assert scaled["spec"]["jobTargetRef"] == job["spec"]
    assert "--until-empty" in job["spec"]["template"]["spec"]["containers"][0]["command"]


def assert_is_scaled(scaled: dict[str, Any], kind: str, authentication: dict[str, Any]) -> None:
    """By KEDA's documentation: no package brings its schemas."""
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", kind)
    spec = scaled["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 7)
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "postgresql"
    assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
    assert trigger["metadata"]["query"] == load_question(["render", "it's"], "holdfast")
    assert trigger["metadata"]["targetQueryValue"] == "5"  # numbers of KEDA's metadata are text
    assert (authentication["apiVersion"], authentication["kind"]) == ("keda.sh/v1alpha1", "TriggerAuthentication")
    (reference,) = authentication["spec"]["secretTargetRef"]
    assert reference == {"parameter": "connection", "name": "holdfast", "key": "url"}


@pytest.mark.long
def test_manifests_are_the_same_as_json() -> None:
    listed = json.loads(holdfast(*ASKED, *SLOTS, "--json").out)
    assert (listed["kind"], listed["items"]) == ("List", printed())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "Mill"}, "Kubernetes takes no name 'Mill'"),
        ({"secret": "a_b"}, "Kubernetes takes no secret 'a_b'"),
        ({"app": "shop"}, "a deployment needs MODULE:APP"),
        ({"image": " "}, "a deployment needs MODULE:APP"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(options: dict[str, str], reason: str) -> None:
    given: dict[str, Any] = {"app": "shop:hf", "image": "shop:1", **options}
    with pytest.raises(UsageError, match=reason):
        as_deployment(Deployment(policy=WorkerPool(), **given))
