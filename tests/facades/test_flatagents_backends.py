"""FA-01 to FA-15: registries of workers and pools of work, on both databases and in memory."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadSetting, DuplicateWorker, NotFound, Unavailable, UsageError
from holdfast.facades.flatagents import (
    BackendConfig,
    RegistrationBackend,
    UnknownWorker,
    WorkBackend,
    WorkerFilter,
    WorkerRegistration,
    WorkPool,
    create_backends,
)
from holdfast.facades.flatagents.redis_backends import RedisWorkBackend, Server
from holdfast.facades.flatagents.registration import HoldfastRegistrationBackend
from holdfast.facades.flatagents.work import HoldfastWorkBackend, HoldfastWorkPool, acting
from tests.facades.test_leases import SHORT, patiently, repeating

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres", "memory", "redis"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backends(
    request: pytest.FixtureRequest, dialect: str
) -> Iterator[tuple[HoldfastRegistrationBackend, HoldfastWorkBackend]]:
    """Both backends, in one place: of each database, and once in memory."""
    if dialect == "memory":
        config = BackendConfig("memory", "memory")
    elif dialect == "redis":
        url = request.getfixturevalue("redis_url")
        config = BackendConfig("redis", "redis", registration_path=url, work_path=url)
    else:
        config = BackendConfig(dialect, dialect, registration_path=request.getfixturevalue("url"))
    registry, work = create_backends(config)
    yield registry, work  # type: ignore[misc]  # those on Redis have the same calls
    registry.close()  # type: ignore[attr-defined]


@pytest.fixture
def registry(backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend]) -> HoldfastRegistrationBackend:
    return backends[0]


@pytest.fixture
def pool(backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend]) -> HoldfastWorkPool:
    return backends[1].pool("papers")


def ids(workers: list[Any]) -> set[str]:
    return {worker.worker_id for worker in workers}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "memory"])  # on Redis the gateway knows what it has claimed
def test_an_item_whose_claim_was_answered_with_another_goes_back(
    pool: HoldfastWorkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [pool.push({"n": number}) for number in range(2)]
    monkeypatch.setattr(pool._store, "transact", repeating(pool._store.transact))
    second, first = pool.claim("w1"), pool.claim("w1")
    assert first is not None
    assert second is not None
    assert [first.id, second.id] == items


def test_fa_01_a_registered_worker_is_active_and_listed(registry: HoldfastRegistrationBackend) -> None:
    given = WorkerRegistration("w1", "box", 42, ["gpu"], "2026-01-01T00:00:00Z", "papers")
    record = registry.register(given)
    assert (record.status, record.host, record.pid, record.pool_id) == ("active", "box", 42, "papers")
    assert (record.started_at, record.capabilities) == ("2026-01-01T00:00:00Z", ("gpu",))
    assert record.last_heartbeat
    assert registry.get("w1") == record
    assert registry.get("nobody") is None
    registry.register(WorkerRegistration("w2"))
    registry.updateStatus("w2", "terminating")
    assert ids(registry.list(status="active")) == {"w1"}
    assert ids(registry.list(WorkerFilter(status=["active", "terminating"]))) == {"w1", "w2"}
    assert ids(registry.list(pool_id="papers")) == {"w1"}
    registry.update_status("w1", "warming up")
    assert ids(registry.list(status="warming up")) == {"w1"}, "any text is a status"


def test_fa_02_the_id_of_a_live_worker_is_taken(registry: HoldfastRegistrationBackend) -> None:
    first = registry.register(WorkerRegistration("w1"))
    with pytest.raises(DuplicateWorker):
        registry.register(WorkerRegistration("w1"))
    for status in ("terminated", "lost"):
        registry.update_status("w1", status)
        again = registry.register(WorkerRegistration("w1"))
        assert again.status == "active"
        assert again.incarnation > first.incarnation
    assert len(registry.list()) == 1


def test_fa_03_a_heartbeat_of_an_unknown_or_lost_worker_is_refused(registry: HoldfastRegistrationBackend) -> None:
    with pytest.raises(UnknownWorker):
        registry.heartbeat("nobody")
    before = registry.register(WorkerRegistration("w1"))
    registry.heartbeat("w1", {"progress": 1})
    registry.heartbeat("w1", {"gpu": "cold"})
    after = registry.get("w1")
    assert after is not None
    assert after.metadata == {"progress": 1, "gpu": "cold"}
    assert after.last_heartbeat > before.last_heartbeat
    registry.update_status("w1", "lost")
    with pytest.raises(KeyError, match="is lost"):
        registry.heartbeat("w1")
    with pytest.raises(UnknownWorker):
        registry.update_status("w1", "active")


def test_fa_04_capabilities_match_as_whole_names(registry: HoldfastRegistrationBackend) -> None:
    registry.register(WorkerRegistration("w1", capabilities=["gpu"]))
    registry.register(WorkerRegistration("w2", capabilities=["gpu2"]))
    assert ids(registry.list(capability="gpu")) == {"w1"}


def test_fa_05_stale_workers_are_those_beyond_the_threshold(registry: HoldfastRegistrationBackend) -> None:
    for name in ("silent", "left"):
        registry.register(WorkerRegistration(name))
    registry.update_status("left", "terminated")
    patiently(lambda: ids(registry.list(stale_threshold_seconds=SHORT)) == {"silent"})
    registry.register(WorkerRegistration("fresh"))
    assert ids(registry.list(stale_threshold_seconds=60)) == set()
    assert "fresh" not in ids(registry.list(stale_threshold_seconds=SHORT))


def test_fa_06_a_worker_is_stale_after_two_heartbeats() -> None:
    with create_backends({"registration": "memory", "work": "memory"}).registration as registry:  # type: ignore[attr-defined]
        assert registry.stale_threshold_seconds == 60
    config = {"backends": {"registration": "memory", "work": "memory"}, "heartbeat_interval": 5}
    with create_backends(config).registration as registry:  # type: ignore[attr-defined]
        assert registry.stale_threshold_seconds == 10


def test_fa_07_pools_are_found_by_name_and_are_apart(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend],
) -> None:
    registry, work = backends
    assert work.pool("a") is work.pool("a")
    work.pool("a").push(1)
    assert (work.pool("a").size(), work.pool("b").size()) == (1, 0)
    assert work.pool("b").claim("w1") is None
    for given, interface in ((registry, RegistrationBackend), (work, WorkBackend), (work.pool("a"), WorkPool)):
        assert isinstance(given, interface)


def test_fa_08_what_is_pushed_has_an_id_of_its_own_and_comes_back(pool: HoldfastWorkPool) -> None:
    data = {"title": "Über", "pages": [1, 2.5, None, True]}
    first, second = pool.push(data), pool.push(data)
    assert first != second
    assert pool.size() == 2
    item = pool.claim("w1")
    assert item is not None
    assert (item.id, item.data, item.max_retries) == (first, data, 3)
    with pytest.raises(UsageError):
        pool.push({1, 2})
    with pytest.raises(UsageError, match="max_retries"):
        pool.push(1, {"retries": 2})


def test_fa_09_the_oldest_item_is_claimed_first_and_no_longer_counted(pool: HoldfastWorkPool) -> None:
    pushed = [pool.push(n) for n in range(3)]
    claimed = [pool.claim("w1") for _ in range(3)]
    assert [item.id for item in claimed if item] == pushed
    assert (pool.size(), pool.claimed()) == (0, 3)
    assert pool.claim("w1") is None


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "redis"])
def test_fa_10_eight_processes_share_a_thousand_items(dialect: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue("redis_url" if dialect == "redis" else "url")
    pool = create_backends({"work": dialect, "registration": dialect, "work_path": url}).work.pool("papers")
    pushed = [pool.push(n) for n in range(1_000)]
    said = asyncio.run(raced(url, 8))
    assert sorted(id for each in said for id in each) == sorted(pushed)
    assert sum(map(bool, said)) > 1, "they were at it at the same time"
    assert pool.size() == 0


async def raced(url: str, count: int) -> list[list[str]]:
    """What each of so many processes has claimed, all of them let go at once."""
    program, pipe = [sys.executable, "-m", "tests.facades.claiming", url], asyncio.subprocess.PIPE
    racers = [
        await asyncio.create_subprocess_exec(*program, f"w{n}", cwd=ROOT, stdin=pipe, stdout=pipe) for n in range(count)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert await racer.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(racer.communicate(b"\n") for racer in racers))
    assert [racer.returncode for racer in racers] == [0] * count
    return [output.decode().split() for output, _ in outputs]


@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.long)])
def test_fa_10_eight_threads_share_a_pool_in_memory(count: int) -> None:
    registry, work = create_backends({"registration": "memory", "work": "memory"})
    pool = work.pool("papers")
    pushed = [pool.push(n) for n in range(count)]

    def drain(worker_id: str) -> list[str]:
        claimed = []
        while (item := pool.claim(worker_id)) is not None:
            claimed.append(item.id)
            pool.complete(item.id)
        return claimed

    with ThreadPoolExecutor(8) as threads:
        claimed = [id for each in threads.map(drain, [f"w{n}" for n in range(8)]) for id in each]
    assert sorted(claimed) == sorted(pushed)
    registry.close()  # type: ignore[attr-defined]


def test_fa_11_a_result_is_stored_and_a_repeat_is_accepted(pool: HoldfastWorkPool) -> None:
    pool.push("x")
    item = pool.claim("w1")
    assert item is not None
    assert item.fence is not None
    assert pool.complete(item.id, {"ok": 1})
    assert pool.complete(item.id, {"ok": 1}), "the same claim, again"
    other = ".".join([*item.fence.split(".")[:-1], "7"])
    assert not pool.complete(item.id, {"ok": 2}, fence=other)
    done = pool.get(item.id)
    assert (done.status, done.result) == ("done", {"ok": 1})
    with pytest.raises(NotFound):
        pool.complete("no such item")


def test_fa_12_an_item_that_fails_too_often_is_poisoned(pool: HoldfastWorkPool) -> None:
    item_id = pool.push("x")
    for attempt in (1, 2, 3):
        item = pool.claim("w1")
        assert item is not None
        assert item.attempts == attempt - 1
        assert pool.fail(item.id, f"broken {attempt}")
        seen = pool.get(item_id)
        assert (seen.status, seen.attempts, seen.error) == (
            "poisoned" if attempt == 3 else "pending",
            attempt,
            f"broken {attempt}",
        )
    assert pool.claim("w1") is None
    assert [item.id for item in pool.items("poisoned")] == [item_id]
    pool.push("y", {"max_retries": 1})
    once = pool.claim("w1")
    assert once is not None
    pool.fail(once.id)
    assert pool.get(once.id).status == "poisoned"


def test_fa_13_only_that_workers_claims_in_that_pool_are_released(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend],
) -> None:
    _, work = backends
    pool, other = work.pool("papers"), work.pool("books")
    for each in (pool, pool, pool, other):
        each.push("x")
    assert all((pool.claim("w1"), pool.claim("w1"), pool.claim("w2"), other.claim("w1")))
    assert pool.releaseByWorker("w1") == 2
    assert (pool.size(), pool.claimed(), other.claimed()) == (2, 1, 1)
    assert pool.release_by_worker("nobody") == 0


def test_fa_14_a_reaped_try_counts_and_a_release_does_not(pool: HoldfastWorkPool) -> None:
    item_id = pool.push("x", {"max_retries": 2})
    pool.claim("w1")
    assert pool.release(item_id)
    assert pool.get(item_id).attempts == 0
    pool.claim("w1")
    pool.release_by_worker("w1")
    assert (pool.get(item_id).status, pool.get(item_id).attempts) == ("pending", 1)
    pool.claim("w2")
    pool.release_by_worker("w2")
    assert pool.get(item_id).status == "poisoned"


def test_fa_15_a_late_result_is_ignored_and_reported(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend], caplog: pytest.LogCaptureFixture
) -> None:
    registry, work = backends
    pool, item_id = work.pool("papers"), work.pool("papers").push("x")
    registry.register(WorkerRegistration("slow"))
    late = pool.claim("slow")
    assert late is not None
    registry.update_status("slow", "lost")
    assert not pool.complete(item_id, "of a lost worker"), "it is lost, though its item is not released yet"
    assert pool.release_by_worker("slow") == 1
    with pytest.raises(UnknownWorker):
        pool.claim("slow")
    new = pool.claim("quick")
    assert new is not None
    with caplog.at_level(logging.WARNING, "holdfast.flatagents"):
        assert not pool.complete(item_id, "late", fence=late.fence)
        assert not pool.fail(item_id, "late", worker_id="slow")
    assert caplog.text.count("is ignored") == 3
    assert pool.complete(item_id, "right")
    assert pool.get(item_id).result == "right"


def test_a_worker_that_terminates_leaves_nothing_behind(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend],
) -> None:
    registry, work = backends
    pool, item_id = work.pool("papers"), work.pool("papers").push("x")
    registry.register(WorkerRegistration("w1"))
    pool.claim("w1")
    held = registry.get("w1")
    assert held is not None
    assert held.current_task_id == item_id
    registry.update_status("w1", "terminated")
    assert (pool.get(item_id).status, pool.get(item_id).attempts) == ("pending", 1)
    left = registry.get("w1")
    assert left is not None
    assert (left.status, left.current_task_id) == ("terminated", None)


def test_a_worker_that_was_told_to_terminate_hands_its_item_back(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend],
) -> None:
    registry, work = backends
    pool, item_id = work.pool("papers"), work.pool("papers").push("x")
    registry.register(WorkerRegistration("w1"))
    pool.claim("w1")
    registry.update_status("w1", "terminating")
    told = registry.get("w1")
    assert told is not None
    assert (told.status, told.current_task_id) == ("terminating", item_id)
    pool.push("y")
    assert pool.claim("w1") is None, "it takes nothing more"
    registry.update_status("w1", "terminated")
    item = pool.get(item_id)
    assert (item.status, item.attempts) == ("pending", 0), "that costs no try"


def test_a_heartbeat_says_where_a_worker_is(registry: HoldfastRegistrationBackend) -> None:
    registry.register(WorkerRegistration("w1", "old", 1))
    registry.heartbeat("w1", {"host": "new", "pid": 2, "load": 0.5})
    moved = registry.get("w1")
    assert moved is not None
    assert (moved.host, moved.pid, moved.metadata) == ("new", 2, {"load": 0.5})


def test_an_id_that_only_claims_is_no_registered_worker(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend],
) -> None:
    registry, work = backends
    pool, item_id = work.pool("papers"), work.pool("papers").push("x")
    assert pool.claim("w1")
    assert registry.get("w1") is None
    assert registry.list() == []
    registry.register(WorkerRegistration("w1"))
    assert pool.complete(item_id, "done", worker_id="w1"), "what it claimed before it registered is its own"


def test_backends_that_cannot_be_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match="sqlite"):
        create_backends({"registration": "sqlit"})
    with pytest.raises(BadSetting, match="URL"):
        create_backends({"registration": "postgres"})
    monkeypatch.chdir(tmp_path)
    registry, work = create_backends({"registration_path": "./a.sqlite", "work_path": "./b.sqlite"})
    registry.register(WorkerRegistration("w1"))
    work.pool("p").push(1)
    assert work.pool("p").claim("w1")
    for each in (registry, work):
        each.close()  # type: ignore[union-attr]
    default = create_backends()
    assert default.registration.list() == []
    assert (tmp_path / "data" / "workers.sqlite").exists()
    default.registration.close()  # type: ignore[attr-defined]


def test_a_worker_that_claims_again_gets_the_item_that_it_has_in_that_pool(
    backends: tuple[HoldfastRegistrationBackend, HoldfastWorkBackend],
) -> None:
    """As after a crash: the action of a machine runs again, for the same worker."""
    papers, books = backends[1].pool("papers"), backends[1].pool("books")
    paper, book = papers.push("paper"), books.push("book")
    papers.push("another paper")
    token = acting.set("w1")
    try:
        claimed = [pool.claim("w1") for pool in (papers, books, papers, books)]
    finally:
        acting.reset(token)
    assert [item.id for item in claimed if item] == [paper, book, paper, book]


def test_what_a_heartbeat_tells_comes_back_as_it_was(registry: HoldfastRegistrationBackend) -> None:
    registry.register(WorkerRegistration("w1"))
    told = {"empty": [], "none": {}, "big": 2**60 + 1, "half": 0.5, "text": "Ünï", "null": None}
    registry.heartbeat("w1", told)
    registry.heartbeat("w1", {"half": 0.25})
    worker = registry.get("w1")
    assert worker is not None
    assert worker.metadata == told | {"half": 0.25}
    registry.update_status("w1", "lost")
    assert registry.register(WorkerRegistration("w1")).metadata == {}, "another incarnation"


class Between(Server):
    """A Redis server on which somebody reaps a worker just when its claim is done, and another one claims."""

    def do(self, verb: str, *args: object) -> Any:
        answer = super().do(verb, *args)
        if verb == "claim" and args[1] == "slow":
            super().do("release_by_worker", "slow", args[0])
            super().do("claim", args[0], "quick", 0)
        return answer


def test_a_claim_on_redis_has_its_own_fence_and_no_later_one(redis_url: str) -> None:
    pool = RedisWorkBackend(server=Between(redis_url)).pool("papers")
    item_id = pool.push("x")
    item = pool.claim("slow")
    assert item is not None
    assert (item.claimed_by, item.attempts, item.status) == ("slow", 0, "claimed")
    assert not pool.complete(item_id, "late", fence=item.fence)
    assert pool.complete(item_id, "right", worker_id="quick")


def test_items_on_redis_are_counted_and_listed_by_status(redis_url: str) -> None:
    pool = RedisWorkBackend(redis_url).pool("papers")
    pushed = [pool.push(n) for n in range(1_100)]
    for _ in range(1_050):
        pool.claim("w1")
    assert (pool.size(), pool.claimed()) == (50, 1_050)
    assert [item.id for item in pool.items("pending", limit=2)] == pushed[:-3:-1], "the newest first"
    assert pool.complete(pushed[0])
    assert ([item.id for item in pool.items("done")], len(pool.items(limit=5))) == ([pushed[0]], 5)
    assert pool.release_by_worker("w1") == 1_049
    assert (pool.size(), pool.claimed()) == (1_099, 0)


def test_a_pool_on_redis_forgets_its_oldest_claims(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.facades.flatagents.redis_backends.REMEMBERED", 2)
    pool = RedisWorkBackend(redis_url).pool("papers")
    pushed = [pool.push(n) for n in range(3)]
    first, *_ = [pool.claim("w1") for _ in pushed]
    assert first is not None
    assert [pool.complete(id) for id in pushed] == [False, True, True]
    assert pool.complete(pushed[0], fence=first.fence)


def test_a_redis_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        RedisWorkBackend("redis://127.0.0.1:1/0").pool("papers").size()
