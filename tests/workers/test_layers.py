"""A layer plugs into workers by what it says of itself, and workers need not change: here is a second one, made up.

Tides rise at places. The jobs of one are `tide:<place>`, which no program declares: whoever plugs the layer in can
serve them all. How high each rose is written when its job ends, in the same transaction.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import StoreRefused, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, derived_id, new_id
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import EndedLease, MovedJob, NewJob, Route
from holdfast.kernel.waiting import signal
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition, Registry
from holdfast.workers.layer import Chore, Layer
from holdfast.workers.role import Role
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import SlotGroup
from tests.conftest import Place
from tests.support.apps import MakeApp, happens, working
from tests.support.past_kernel import query

KIND = "tide:"


class Tides(Layer):
    """Everything that a layer may say."""

    name = "tides"
    kinds = (KIND,)
    retry_advice = "Wait for the next tide."
    cancel_advice: Mapping[str, str] = {f"{KIND}moon": "stop the earth instead"}
    slots = (SlotGroup("tides", lambda settings: 1),)

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.calm = True
        self.running = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.measured = asyncio.Event()
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.started_with: Collection[str] = ()
        self.ready = asyncio.Event()
        self.chores = (Chore(lambda settings: settings.cleanup_interval, self._measure),)
        self.hints = {"tide": self.heard.put_nowait, "storm": self._storm}
        registry.plug_in(self)

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
        if not self.calm:
            raise LookupError("nobody can measure this")
        for job in jobs:
            await _note(tx, f"{job.kind} {job.state}")

    async def prepare(self, database: Database) -> None:
        await database.transact(_note, "prepared")

    async def adopt(self, database: Database, routes: Sequence[Route]) -> None:
        for kind in {each for route in routes for each in json.loads(route.capabilities) if each.startswith(KIND)}:
            if kind not in self.registry.definitions and kind not in self.withheld():
                self.registry.add(tide(kind, self._rise))

    def withheld(self) -> Mapping[str, str]:
        return {f"{KIND}neap": "no moon"}

    async def started(self, capabilities: Collection[str]) -> None:
        self.started_with = capabilities
        self.ready.set()

    async def _rise(self, metres: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            return metres
        finally:
            self.running -= 1

    async def _measure(self, tx: Transaction, settings: Settings) -> None:
        self.measured.set()

    def _storm(self, names: str) -> None:
        raise LookupError("this layer cannot bear storms")


async def _note(tx: Transaction, what: str) -> None:
    """Written down once, where the test can read it."""
    await signal(tx, derived_id("note", what), "notes of tides", codec.encode(what, what="a note", cap=1_000))


def tide(kind: str, rise: Any, **changes: Any) -> Definition:
    given: dict[str, Any] = {"slots": "tides", "layer": "tides"} | changes
    return Definition(
        kind=kind,
        function=rise,
        signature=Signature(kind, rise),
        queue="default",
        requires=frozenset(),
        retry=RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=100,
        isolate=None,
        **given,
    )


async def rise_at(hf: Holdfast, *places: str) -> list[JobId]:
    """Enqueue tides, as the program of such a layer would."""
    return await enqueue_kinds(hf, *(KIND + at for at in places))


async def enqueue_kinds(hf: Holdfast, *kinds: str) -> list[JobId]:
    """Enqueue jobs of these kinds for the layer of tides."""
    jobs, routes = [], set()
    for kind in kinds:
        route = route_for("default", kind)
        job = NewJob(
            id=new_id(core_of(hf).ports),
            kind=kind,
            queue="default",
            route=route.id,
            tenant="",
            priority=100,
            delay_us=None,
            due_at=None,
            timeout_us=None,
            deadline_us=None,
            deadline_at=None,
            max_attempts=1,
            max_rescues=1,
            parent=None,
            retry_of=None,
            payload=codec.encode({"metres": 3}, what="a payload", cap=1_000),
            metadata="{}",
            layer="tides",
        )
        jobs.append(job)
        routes.add(route)
    await core_of(hf).runtime().open()
    await core_of(hf).runtime().database.transact(enqueue, jobs, sorted(routes))
    return [job.id for job in jobs]


def notes(place: Place) -> set[str]:
    found = query(place, "select cast(payload as text) from holdfast.signal where channel = 'notes of tides'")
    return {json.loads(payload) for (payload,) in found}


@pytest.fixture
def hf(make_app: MakeApp) -> Holdfast:
    return make_app(embedded=False)


async def test_jobs_that_nobody_declared_are_adopted_and_their_end_is_noted(hf: Holdfast, place: Place) -> None:
    Tides(core_of(hf).registry)
    athens, brest = await rise_at(hf, "athens", "brest")
    async with working(hf):
        assert [await hf.jobs[id].result() for id in (athens, brest)] == [3, 3]
        (cork,) = await rise_at(hf, "cork")  # while the worker works
        assert await hf.jobs[cork].result() == 3
    assert notes(place) == {"prepared", *(f"tide:{at} succeeded" for at in ("athens", "brest", "cork"))}
    assert (await hf.jobs.get(athens)).layer == "tides"


async def test_whoever_ends_a_job_its_layer_is_told_in_the_same_transaction(hf: Holdfast, place: Place) -> None:
    tides = Tides(core_of(hf).registry)
    (id,) = await rise_at(hf, "athens")
    tides.calm = False
    with pytest.raises(LookupError):
        await hf.jobs[id].cancel()
    assert ((await hf.jobs.get(id)).state, notes(place)) == ("pending", set())
    tides.calm = True
    assert await hf.jobs[id].cancel() == "cancelled"
    assert notes(place) == {"tide:athens cancelled"}


async def test_what_a_program_declares_is_not_told_to_the_layer(hf: Holdfast, place: Place) -> None:
    tides = Tides(core_of(hf).registry)
    tides.calm = False

    @hf.job
    async def work() -> str:
        return "done"

    assert await (await work.enqueue()).cancel() == "cancelled"
    async with working(hf):
        assert await (await work.enqueue()).result() == "done"
    assert notes(place) == {"prepared"}


async def test_its_attempts_take_its_own_slots(make_app: MakeApp) -> None:
    hf = make_app(embedded=False, heartbeat="100ms")
    tides = Tides(core_of(hf).registry)
    tides.gate.clear()

    @hf.job
    async def work() -> str:
        return "done"

    ids = await rise_at(hf, "athens", "athens", "brest")
    async with working(hf) as worker:
        assert [await (await work.enqueue()).result() for _ in range(3)] == [
            "done"
        ] * 3  # a full group holds up no other
        row = await hf.workers.get(worker.id)
        assert row.lines.keys() == {"jobs", "tides"}
        assert row.lines["tides"].slots == 1
        tides.gate.set()
        assert [await hf.jobs[id].result() for id in ids] == [3, 3, 3]
    assert tides.most == 1


async def test_what_it_withholds_is_left_to_others(hf: Holdfast) -> None:
    tides = Tides(core_of(hf).registry)
    neap, athens = await rise_at(hf, "neap", "athens")
    async with working(hf) as worker:
        assert await hf.jobs[athens].result() == 3
        await happens(tides.ready)
        assert {"tide:athens", "lacks:tide:neap"} <= set(tides.started_with)
        assert "tide:neap" not in tides.started_with
        assert (await hf.workers.get(worker.id)).capabilities == sorted(tides.started_with)
    assert (await hf.jobs.get(neap)).state == "pending"


async def test_a_role_leaves_out_some_of_what_its_worker_could_take(hf: Holdfast) -> None:
    tides = Tides(core_of(hf).registry)
    athens, brest = await rise_at(hf, "athens", "brest")
    async with working(hf, Role(only={"tide": ["brest"]})):
        assert await hf.jobs[brest].result() == 3
        await happens(tides.ready)
        assert list(tides.started_with) == ["tide:brest"]
    assert (await hf.jobs.get(athens)).state == "pending"
    with pytest.raises(UsageError, match=r"only={'tide': \['brest'\]}"):
        Role(only={"tide": "brest"})


def test_a_role_says_how_to_write_what_earlier_releases_took() -> None:
    earlier: dict[str, Any] = {"tides": ("brest",)}
    with pytest.raises(UsageError, match=r"no option 'tides'; .* only={'tide': \['brest'\]}"):
        Role(**earlier)
    where_it_stood: Any = ("brest",)
    with pytest.raises(UsageError, match=r"by their sort: only={'tag': \['brest'\]}"):
        Role("", "", None, (), "stopped", where_it_stood)


async def test_its_chores_are_done_by_whoever_cleans_up(hf: Holdfast) -> None:
    tides = Tides(core_of(hf).registry)
    async with working(hf):
        await happens(tides.measured)


async def test_a_worker_passes_its_hints_on_and_bears_one_that_fails(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    tides = Tides(core_of(hf).registry)

    async def hint(tx: Transaction, note: str) -> None:
        await tx.hint(note)

    async with working(hf):
        for note in ("storm all", "tide high,low"):
            await core_of(hf).runtime().database.transact(hint, note)
        assert await asyncio.wait_for(tides.heard.get(), 60) == "high,low"
        (id,) = await rise_at(hf, "athens")
        assert await hf.jobs[id].result() == 3
    assert "could not take the hint 'storm'" in caplog.text


async def test_it_says_what_to_do_instead_of_retry_and_cancel(hf: Holdfast) -> None:
    Tides(core_of(hf).registry)
    athens, moon = await rise_at(hf, "athens", "moon")
    await hf.jobs[athens].cancel()
    with pytest.raises(StoreRefused, match=r"belongs to tides, .* Wait for the next tide\."):
        await hf.jobs.retry(athens)
    with pytest.raises(UsageError, match="stop the earth instead"):
        await hf.jobs[moon].cancel()
    with pytest.raises(UsageError, match="stop the earth instead"):
        await hf.jobs.cancel(kind="tide:moon")
    assert await hf.jobs.cancel(all=True) == (0, 0)
    assert (await hf.jobs.get(moon)).state == "pending"


async def test_a_program_that_does_not_know_the_layer_leaves_its_jobs_alone(hf: Holdfast, make_app: MakeApp) -> None:
    Tides(core_of(hf).registry)
    other = make_app(embedded=False)

    @other.job
    async def work() -> str:
        return "done"

    (id,) = await rise_at(hf, "athens")
    async with working(other):
        assert await (await work.enqueue()).result() == "done"
        assert await hf.jobs[id].cancel() == "cancelled", "it was pending"
        with pytest.raises(StoreRefused, match=r"belongs to tides, .* Enqueue it again through tides"):
            await other.jobs.retry(id)


@pytest.mark.parametrize("kinds", [("ebb",), ("tide:athens", "ebb")], ids=len)
async def test_a_job_of_a_layer_has_one_of_its_kinds(hf: Holdfast, kinds: tuple[str, ...]) -> None:
    """The kind of a job tells the kernel whom to tell of its end, so a layer could wait for this end for ever."""
    Tides(core_of(hf).registry)
    with pytest.raises(UsageError, match="job 'ebb' cannot be enqueued for tides, whose kinds begin with 'tide:'"):
        await enqueue_kinds(hf, *kinds)
    assert await hf.jobs.list() == []


@pytest.mark.parametrize(
    "shared",
    [
        {"name": "tides"},
        {"kinds": ("tide:spring",)},
        {"kinds": ("tid",)},
        {"slots": Tides.slots},
        {"hints": {"tide": print}},
    ],
    ids=lambda shared: next(iter(shared)),
)
def test_two_layers_share_nothing(hf: Holdfast, shared: dict[str, Any]) -> None:
    Tides(core_of(hf).registry)
    own: dict[str, Any] = {"name": "moons", "kinds": ("moon:",), "cancel_advice": {}, "retry_advice": ""}
    with pytest.raises(UsageError, match=r"'[a-z]+' cannot be plugged in beside 'tides'"):
        core_of(hf).registry.plug_in(type("Moons", (Layer,), own | shared)())
    core_of(hf).registry.plug_in(type("Moons", (Layer,), own)())


def test_a_definition_fits_its_layer(hf: Holdfast) -> None:
    Tides(core_of(hf).registry)

    async def rise(metres: int) -> int:
        return metres

    core_of(hf).registry.add(tide("tide:athens", rise))
    with pytest.raises(UsageError, match="names that begin with 'tide:' belong to tides"):
        core_of(hf).registry.add(tide("tide:brest", rise, layer=None))
    with pytest.raises(UsageError, match="it is said to belong to tides, which own no kinds that begin so"):
        core_of(hf).registry.add(tide("ebb", rise))
    with pytest.raises(UsageError, match="wants slots 'ebbs', which no layer has"):
        core_of(hf).registry.add(tide("tide:brest", rise, slots="ebbs"))
