"""What goes wrong between a process and the store rather than between two operations: each played step by step.

Connections are real: one is cut, an answer is late, a sign of life comes back. The clock moves as the script says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from holdfast import Holdfast
from holdfast.agw.link import GatewayAddress, Link
from holdfast.app import core_of
from holdfast.kernel import epoch
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.enqueue import enqueue_unique
from holdfast.kernel.leases import Beat, beat
from holdfast.kernel.routes import route_for
from holdfast.kernel.statements import JobsSql
from holdfast.kernel.watch import cluster_epoch
from holdfast.kernel.workers import advertise_presence
from holdfast.resp import server as resp_server
from holdfast.resp.client import from_table
from holdfast.resp.options import RespOptions
from holdfast.resp.records import Epoch
from holdfast.resp.server import RespServer
from holdfast.workers.lifeline import Pulse
from holdfast.workers.slots import Stop
from holdfast.workers.sweeper import Sweeper
from holdfast.workers.worker import Worker
from tests.interleaving.edits import Edit, respell
from tests.support.apps import eventually, happens
from tests.support.locks import blocked_by
from tests.support.stores import Store, postgres_store

BRIEF: dict[str, Any] = {"presence_quiet": "1s", "presence_grace": "1s"}


async def a_new_connection_to_another_server_raises_the_epoch(url: str) -> None:
    """A standby was promoted, or a backup restored, while the process lived: its next connection reaches that."""
    async with postgres_store(url, url) as store:
        await store.do(cluster_epoch)  # a connection is open, and has noted the server
        await store.do(epoch.adopt, "the server before the failover")  # what a backup of that server says
        before = await store.do(cluster_epoch)
        await _cut(store)
        lease = await store.claimed()
        assert lease.epoch > before, "a claim over a new connection was given a token of the server before"


async def nobody_is_judged_right_after_a_reconnect(url: str) -> None:
    """What cut our connections may have cut everybody's: give the others time to come back."""
    async with postgres_store(url, url, **BRIEF) as store:
        heard: list[str] = []
        await store.database.listen(heard.append)
        worker = await store.worker()
        await store.do(advertise_presence, worker, presence=True)
        await _cut(store)

        async def listens_again() -> bool:
            return len(heard) > 1

        await eventually(listens_again)
        assert await store.database.presence.absent([worker]) == set(), "a verdict right after the reconnect"
        await store.advance("2s")
        assert await store.database.presence.absent([worker]) == {worker}


async def one_look_is_no_verdict(url: str) -> None:
    """A worker that takes its presence again within the grace was never gone."""
    async with postgres_store(url, url, **BRIEF) as store:
        sweeper = Sweeper(store.database, store.ports, store.settings)
        worker = await store.worker()
        await store.do(advertise_presence, worker, presence=True)
        assert await sweeper.gone() == set(), "it was missed once, and judged"
        assert await store.database.presence.hold(worker)
        await store.advance("2s")
        assert await sweeper.gone() == set()
        await store.database.presence.withdraw(worker)
        assert await sweeper.gone() == set(), "it was missed once since it came back, and judged"
        await store.advance("2s")
        assert await sweeper.gone() == {worker}


_HALT = 7_777
_HALTED = f" limit $2 + (select length(cast(pg_advisory_xact_lock_shared({_HALT}) as text))) for update"


async def a_claim_that_began_before_a_replace_says_what_was_said_last(url: str) -> None:
    """A claim is one statement, and has seen the tables before it locks a row: it must return what is there then."""
    async with postgres_store(url, url) as store, await psycopg.AsyncConnection.connect(url) as other:
        respell(store.database, [Edit(JobsSql.claim_one, " limit $2 for update", _HALTED)])
        unique: dict[str, Any] = {"unique_key": "key", "unique_scope": "pending", "replaces": True}
        routes = [route_for("default", "work")]
        worker = await store.worker()
        await store.do(enqueue_unique, store.job(payload='"first"', **unique), routes)
        await other.execute(b"select pg_advisory_xact_lock(%d)" % _HALT)
        claiming = asyncio.create_task(store.claim(worker))
        await blocked_by(url, other)
        answer = await store.do(enqueue_unique, store.job(payload='"last"', **unique), routes)
        assert answer.replaced
        await other.commit()
        leases = await claiming or await store.claim(worker)
        assert [lease.payload for lease in leases] == ['"last"'], "it runs what was replaced before it was claimed"


class LateLifeline:
    """Beats when the script says so, and hands the answer on when the script says so."""

    async def open(self) -> None: ...

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        self.compose = compose
        self.heard = heard

    def poke(self) -> None: ...

    async def stop(self) -> None: ...


async def a_late_answer_gives_no_more_time(url: str) -> None:
    """A renewal counts from when it was sent: that is when the store counted from, at the latest."""
    async with postgres_store(url, url) as store:
        app, begun, lifeline = Holdfast(url, embedded=False), asyncio.Event(), LateLifeline()

        @app.job(name="work")
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = Worker(core_of(app).registry, store.database, store.settings, store.ports, lifeline=lifeline)
        await worker.start()
        try:
            await store.enqueue()
            await happens(begun)
            sent_at = store.clock.monotonic()
            pulse = lifeline.compose()
            assert pulse is not None
            assert pulse.held
            answer = await store.do(
                beat,
                pulse.worker,
                pulse.active,
                pulse.held,
                ttl_us=pulse.ttl_us,
                ceiling_us=pulse.ceiling_us,
                me=pulse.me,
            )
            await store.advance("50s")
            lifeline.heard(sent_at, answer)
            holdings = worker.holdings.all()
            await store.advance("10s")  # the lease ends: from now on another may have the job
            await _ticked(worker, store)
            assert [holding.stop for holding in holdings] == [Stop.LOST], "it goes on with a job that another may have"
        finally:
            await worker.stop(grace=0)


async def a_machine_does_not_wait_for_a_child_that_has_ended(url: str) -> None:
    """Its child ends between two statements of the operation that looks how its children stand, and parks."""
    from tests.interleaving.scenes import judge_pair

    await judge_pair(url, "machines/wait_for_first/end_one")


async def a_parent_hears_of_a_child_that_is_to_be_tried_again(url: str) -> None:
    """The child was asked to stop: an ending that says "again" ends it, while its parent begins to wait."""
    from tests.interleaving.scenes import judge_pair

    await judge_pair(url, "asked-child/park/retry_child")


async def a_parent_hears_of_a_child_that_the_sweep_ends(url: str) -> None:
    """The same, where a sweep takes the child's lease."""
    from tests.interleaving.scenes import judge_pair

    await judge_pair(url, "asked-child/park/expire")


async def a_gateway_renews_for_the_epoch_that_has_the_lease(url: str) -> None:
    """After a failover a number may be given out again: it is not the worker that the job was sent to."""
    async with postgres_store(url, url) as store:
        worker = await store.worker()
        lease = await store.claimed(worker)
        await store.advance("50s")
        another = Epoch(worker, "another incarnation")
        assert await store.do(resp_server.keep, another, [lease.held], ttl_us=60_000_000) == set(), (
            "it renews for another"
        )


async def a_gateway_asks_the_store_about_a_lease_that_may_have_run_out(url: str) -> None:
    """What it has sent it may end without a question only for as long as nobody can have taken it away."""
    key, dead_after = "ab" * 32, timedelta(seconds=12)
    app = Holdfast(url, embedded=False)
    options = RespOptions(bind="127.0.0.1:0", principals=from_table({"w": key}), dead_after=dead_after)
    async with postgres_store(url, url), app, RespServer(core_of(app), options) as server:
        link = await Link.open(GatewayAddress("127.0.0.1", server.port))
        try:
            await link.call("AUTH", key)
            said = {"worker_id": "w", "hostname": "h", "agw_version": "0", "capabilities": {"tools": ["sort"]}}
            await link.call("WORKER.REGISTER", json.dumps(said))
            await link.call("LPUSH", "queue:ready", "data")
            assert await link.call("BRPOP", "queue:ready", "60") == b"data"
            (delivery,) = server.gateway.pops.delivered._held.values()
            sure = delivery.sent.sure_until - server.gateway.clock.monotonic()
            assert sure < dead_after.total_seconds(), "it ends a job that may be somebody else's without a question"
        finally:
            await link.close()


SCRIPTS: tuple[Callable[[str], Any], ...] = (
    a_new_connection_to_another_server_raises_the_epoch,
    nobody_is_judged_right_after_a_reconnect,
    one_look_is_no_verdict,
    a_claim_that_began_before_a_replace_says_what_was_said_last,
    a_late_answer_gives_no_more_time,
    a_machine_does_not_wait_for_a_child_that_has_ended,
    a_parent_hears_of_a_child_that_is_to_be_tried_again,
    a_parent_hears_of_a_child_that_the_sweep_ends,
    a_gateway_renews_for_the_epoch_that_has_the_lease,
    a_gateway_asks_the_store_about_a_lease_that_may_have_run_out,
)


async def _cut(store: Store) -> None:
    """End the session that the store has open, as a server that goes away does."""
    assert isinstance(store.database, PostgresDatabase)
    async with store.database.connection() as connection:
        pid = connection.get_server_pid()
    await store.query(f"select pg_terminate_backend({pid})")

    async def is_closed() -> bool:
        return bool(connection.is_closed())

    await eventually(is_closed)


async def _ticked(worker: Worker, store: Store) -> None:
    """The worker has looked at its clock since that was moved."""

    async def has() -> bool:
        return worker._watch.ticked >= store.clock.monotonic()

    await eventually(has)
