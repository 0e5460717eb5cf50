"""Links to PostgreSQL that are cut, silent or deaf: every call has one effect, leases are kept, work is found."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.clock import Ports
from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.kernel.claim import claim
from holdfast.kernel.database import Transaction
from holdfast.kernel.drivers import postgres_pool
from holdfast.kernel.leases import beat, expire
from holdfast.kernel.queries import list_jobs
from tests.chaos.crew import Member
from tests.chaos.jobs import hold, nap, quick
from tests.chaos.mixer import Mixer
from tests.chaos.scene import Scene
from tests.chaos.watch import Watch
from tests.support.apps import eventually, outcomes, settings_with, working
from tests.support.postgres import Server
from tests.support.proxy import EXECUTE, Proxy

pytestmark = pytest.mark.timed

TTL = 4.0
SHORT = {"lease_ttl": f"{TTL}s", "heartbeat": "1s", "worker_ttl": f"{TTL}s"}
MARK = 987_654_321


@pytest.fixture
def url(postgres_url: str) -> str:
    """Past the proxy."""
    return postgres_url


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[Holdfast]:
    """An app on the far side of the proxy."""
    app = Holdfast(proxy.url, settings=settings_with(**SHORT), embedded=False)
    yield app
    await app.close()


@pytest.fixture
async def successor(far: Holdfast) -> JobFunction[[int], int]:
    """A job of that app; by its number one can tell its packets from others."""

    @far.job(name="successor")
    async def successor(number: int) -> int:
        return number + 1

    await successor.enqueue(1)  # opens the database, prepares the statement
    return successor


async def test_an_enqueue_whose_answer_is_lost_is_one_job(
    proxy: Proxy, successor: JobFunction[[int], int], watch: Watch
) -> None:
    proxy.lose_answer(str(MARK).encode())
    job = await successor.enqueue(MARK)
    assert proxy.lost.is_set()
    assert [row.id for row in await watch.do(list_jobs) if str(MARK) in row.payload] == [job.id]


@pytest.mark.long
async def test_an_enqueue_under_a_key_whose_answer_is_lost_is_one_job(
    proxy: Proxy, successor: JobFunction[[int], int], watch: Watch
) -> None:
    proxy.lose_answer(b"COMMIT;")
    job = await successor.options(key="a").enqueue(2)
    assert proxy.lost.is_set()
    assert (await successor.options(key="a").enqueue(2)).id == job.id
    assert await watch.states() == {"pending": 2}


async def test_a_completion_whose_answer_is_lost_is_recognised(
    proxy: Proxy, far: Holdfast, successor: JobFunction[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    async with working(far):
        await (await successor.enqueue(1)).result(timeout="60s")
        proxy.lose_answer(str(MARK).encode())
        job = await successor.enqueue(MARK - 1)
        assert await job.result(timeout="60s") == MARK
        assert await (await successor.enqueue(2)).result(timeout="60s") == 3
    assert proxy.lost.is_set()
    assert await outcomes(far, job.id) == ["succeeded"]
    assert "was lost" not in caplog.text


async def _hints_are_sent() -> bool:
    """Whether no hint of an enqueue is on its way: it is sent after the commit, over the same link."""
    return not any(task.get_name() == "hints" for task in asyncio.all_tasks())


@pytest.mark.long
async def test_a_claim_whose_answer_is_lost_is_not_renewed_and_expires(
    proxy: Proxy, far: Holdfast, successor: JobFunction[[int], int], watch: Watch
) -> None:
    second = await successor.enqueue(2)
    mixer = Mixer(watch.database, "claim")
    await mixer.register()
    database = core_of(far).runtime().database
    await eventually(_hints_are_sent)  # the next statement on the link is the claim
    proxy.lose_answer(EXECUTE)
    (lease,) = await database.transact(claim, mixer.worker, [successor.definition.route.id], 1, 1_000_000)
    assert proxy.lost.is_set()
    assert lease.id == second.id

    async def first_expired() -> bool:
        await database.transact(beat, mixer.worker, 1, [lease.held], ttl_us=60_000_000, ceiling_us=60_000_000)
        await watch.do(expire, gone=[], limit=10, backoff_us=1, chance=Ports().random)
        return (await watch.states())["pending"] == 1

    await eventually(first_expired)
    assert (await watch.job(second.id)).state == "running"


@pytest.mark.long
async def test_work_goes_on_while_links_are_cut(proxy: Proxy, scene: Scene) -> None:
    worker = await scene.registered(url=proxy.url, **SHORT)
    jobs = await nap.enqueue_many([(0.01,)] * 300)
    for ended in (20, 60, 100, 140, 180):
        await scene.watch.until_ended(ended)
        proxy.cut()
    await scene.watch.until_ended(len(jobs))
    assert await scene.watch.states() == {"succeeded": len(jobs)}
    assert Counter(attempt.outcome for attempt in await scene.watch.attempts())["succeeded"] == len(jobs)
    assert "Traceback" not in worker.output


@pytest.mark.long
async def test_work_goes_on_over_a_slow_link(proxy: Proxy, scene: Scene) -> None:
    proxy.delay = 0.03
    jobs = await nap.enqueue_many([(0.1,)] * 20)
    scene.worker(url=proxy.url, **SHORT)
    await scene.watch.until_ended(len(jobs))
    assert Counter(attempt.outcome for attempt in await scene.watch.attempts()) == {"succeeded": len(jobs)}


@pytest.mark.long
async def test_a_silent_link_is_given_up_before_the_lease_is_lost(proxy: Proxy, scene: Scene) -> None:
    gate = scene.gate()
    worker = scene.worker(url=proxy.url, **SHORT)
    job = await hold.enqueue(str(scene.witness), str(gate))
    await eventually(partial(has_beaten, scene, worker))
    proxy.silence()
    lease_until = (await scene.watch.job(job.id)).lease_until or 0
    await eventually(partial(has_passed, scene, lease_until))
    gate.open()
    await scene.watch.until_ended(1)
    assert await scene.watch.outcomes(job.id) == ["succeeded"]
    await (await quick.enqueue(1)).result(timeout="60s")
    assert "Traceback" not in worker.output


@pytest.mark.long
async def test_a_worker_that_is_cut_off_stops_itself_before_its_lease_ends(proxy: Proxy, scene: Scene) -> None:
    worker = scene.worker(url=proxy.url, **SHORT)
    job = await hold.enqueue(str(scene.witness))
    await scene.witness.saw(f"running {job.id} {worker.pid}")
    proxy.refusing = True
    proxy.cut()
    lease_until = (await scene.watch.job(job.id)).lease_until or 0
    await scene.witness.saw(f"cancelled {job.id} {worker.pid} told=True")
    assert scene.watch.now() < lease_until

    proxy.refusing = False
    await scene.witness.saw(f"running {job.id} {worker.pid}", times=2)
    assert "Traceback" not in worker.output


async def test_a_listener_that_is_cut_listens_again(scene: Scene) -> None:
    """With polls a minute apart, only a hint, or the look after each gap in hearing them, finds work."""
    worker = await scene.registered(poll_interval="60s", sweep_interval="60s")
    await scene.watch.query(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )
    for number in range(3):
        await (await quick.enqueue(number)).result(timeout="30s")
    assert "Traceback" not in worker.output


@pytest.mark.long
async def test_the_listening_connection_is_not_closed_for_want_of_work(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "_IDLE_SECONDS", 0.0)
    heard: list[str] = []
    await watch.database.listen(heard.append)
    for _ in range(5):
        await asyncio.gather(*(watch.do(list_jobs) for _ in range(4)))
    await eventually(partial(has_one_connection, watch))
    assert heard == [""]


@pytest.mark.long
async def test_without_wake_ups_the_poll_finds_work(scene: Scene) -> None:
    await scene.registered()
    waited = []
    for number in range(3):
        job = await quick.options(notify=False).enqueue(number)
        await job.result(timeout="60s")
        row = await scene.watch.job(job.id)
        waited.append(((row.claimed_at or 0) - row.created_at) / 1e6)
    print(f"found after {waited} s")
    assert statistics.median(waited) <= 1.5  # the poll interval, and half of it for a busy machine


@pytest.mark.long
async def test_too_many_connections_are_waited_out_and_cost_no_lease(scene: Scene) -> None:
    gate = scene.gate()
    with Server(settings={"max_connections": "12", "superuser_reserved_connections": "0"}) as server:
        scene.hf.settings = scene.hf.settings.override({"url": server.create_database("few")})
        await scene.hf.migrate()
        scene.hf.settings = scene.hf.settings.override({"store_patience": "500ms"})
        job = await hold.enqueue(str(scene.witness), str(gate))
        await scene.hf.close()
        worker = scene.worker(url=scene.hf.settings.url, **SHORT)
        await scene.witness.saw(f"running {job.id} {worker.pid}")
        hogs = await take_all_connections(scene.hf.settings.url)
        with pytest.raises(StoreUnavailable, match="too many"):
            await quick.enqueue(1)
        await eventually(partial(has_passed, scene, scene.watch.now() + round((TTL + 1) * 1e6)))
        for hog in hogs:
            await hog.close()
        gate.open()
        assert await job.result(timeout="60s") == f"held by {worker.pid}"
        assert await outcomes(scene.hf, job.id) == ["succeeded"]
        await (await quick.enqueue(2)).result(timeout="60s")
        assert "Traceback" not in worker.output
        await scene.hf.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "problem",
    [
        asyncpg.DeadlockDetectedError("deadlock detected"),
        asyncpg.SerializationError("could not serialize access"),
        asyncpg.LockNotAvailableError("canceling statement due to lock timeout"),
        asyncpg.QueryCanceledError("canceling statement due to statement timeout"),
    ],
)
async def test_a_transaction_that_the_server_gives_up_again_and_again_may_be_tried_later(
    watch: Watch, problem: Exception
) -> None:
    """Busy, not unknown: a worker keeps an outcome that meets this, and offers it again."""

    async def refused(tx: Transaction) -> None:
        raise problem

    with pytest.raises(StoreBusy) as raised:
        await watch.do(refused)
    assert raised.value.retry == "later"


@pytest.mark.long
async def test_heartbeats_go_on_after_an_error_that_nobody_knows(scene: Scene) -> None:
    worker = await scene.registered(heartbeat="200ms", lease_ttl="10s")
    await scene.watch.query(
        "create function holdfast.refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$"
    )
    await scene.watch.query(
        "create trigger refuse before update on holdfast.worker for each row execute function holdfast.refuse()"
    )
    await worker.says("not today")
    await scene.watch.query("drop trigger refuse on holdfast.worker")
    mended_at = scene.watch.now()

    async def beats() -> bool:
        return (await scene.row_of(worker)).heartbeat_at > mended_at

    await eventually(beats)


async def take_all_connections(url: str) -> list[asyncpg.Connection]:
    hogs = []
    while True:
        try:
            hogs.append(await asyncpg.connect(url))
        except asyncpg.TooManyConnectionsError:
            return hogs


async def has_beaten(scene: Scene, worker: Member) -> bool:
    """Whether a heartbeat has told the store of the running job."""
    return (await scene.row_of(worker)).active > 0


async def has_passed(scene: Scene, moment: int) -> bool:
    return scene.watch.now() > moment


async def has_one_connection(watch: Watch) -> bool:
    backends = "select 1 from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
    return len(await watch.query(backends)) == 1
