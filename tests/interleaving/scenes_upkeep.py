"""What keeps a store in order: workers, duties, schedules, retention."""

from __future__ import annotations

from holdfast.durations import next_tick
from holdfast.kernel import duties
from holdfast.kernel.flow_rows import ScheduleRow
from holdfast.kernel.leases import FOREVER, beat, take_expiry_turn
from holdfast.kernel.queues import pause_queue, resume_queue
from holdfast.kernel.retention import BEGIN, prune
from holdfast.kernel.routes import route_for
from holdfast.kernel.schedules import (
    NewSchedule,
    delete_schedule,
    find_schedule,
    fire,
    pause_schedule,
    postpone,
    put_schedule,
    resume_schedule,
    run_now,
)
from holdfast.kernel.workers import drain, judge_self, lose_workers, register, unregister
from holdfast.outcomes import Done
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import CEILING_US, SECOND, TTL_US, Scene, verb

HOUR_US = 3_600 * SECOND


class Workers(Scene):
    """A worker that has been silent for longer than its TTL while it held a job, and its namesake."""

    name = "workers"

    async def build(self) -> None:
        self.worker = await self.register("silent")
        await self.put(self.job("held"), self.job("free"))
        (self.lease,) = await self.claimed()
        await self.store.advance("61s")
        self.other = await self.register("other")

    @verb
    def beat(self) -> Call:
        return call(beat, self.worker, 1, [self.lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US)

    @verb
    def lose_workers(self) -> Call:
        return call(lose_workers, gone=[], reason="no heartbeat in its ttl")

    @verb
    def register_namesake(self) -> Call:
        return call(register, self.who("silent", "second"), [route_for("default", "work")], ttl_us=TTL_US, gone=[])

    @verb
    def register_twin(self) -> Call:
        return call(register, self.who("silent", "third"), [route_for("default", "work")], ttl_us=TTL_US, gone=[])

    @verb
    def drain(self) -> Call:
        return call(drain, self.worker)

    @verb
    def unregister(self) -> Call:
        return call(unregister, self.worker, reason="stopped")

    @verb
    def expire(self) -> Call:
        return self.sweeping()

    @verb
    def claim(self) -> Call:
        return self.claiming(2, worker=self.other)

    @verb
    def complete(self) -> Call:
        return self.settling((self.lease, Done(1)))

    @verb
    def judge_self(self) -> Call:
        return call(judge_self, self.who("silent").incarnation)

    @verb
    def take_expiry_turn(self) -> Call:
        return call(take_expiry_turn, pause_us=SECOND)

    @verb
    def bring_back(self) -> Call:
        return self.bringing_back()


class SetBack(Workers):
    """The same after somebody has set the clock back by an hour: heartbeats, leases and turns are ahead of it."""

    name = "workers-set-back"

    async def build(self) -> None:
        await super().build()
        await self.do(take_expiry_turn, pause_us=SECOND)
        await self.store.set_back("1h")


class Duties(Scene):
    """A duty whose term is over, taken by two; what they clean up; and jobs of what is cleaned up."""

    name = "duties"
    removes = True

    async def build(self) -> None:
        self.worker = await self.register("leader")
        term = await self.do(duties.acquire, duties.CLEANUP, self.worker, ttl_us=30 * SECOND, gone=[])
        assert term is not None
        self.old = term
        await self.put(self.job("old"))
        await self.do(pause_queue, "default", reason="a test")
        await self.do(resume_queue, "default")
        (lease,) = await self.claimed()
        ending = self.settling((lease, Done(1)))
        await self.do(ending.operation, *ending.args)
        await self.store.advance("2d")
        self.heir = await self.register("heir")
        current = await self.do(duties.acquire, duties.SCHEDULES, self.heir, ttl_us=30 * SECOND, gone=[])
        assert current is not None
        self.current = current

    @verb
    def acquire(self) -> Call:
        return call(duties.acquire, duties.CLEANUP, self.heir, ttl_us=30 * SECOND, gone=[])

    @verb
    def acquire_too(self) -> Call:
        return call(duties.acquire, duties.CLEANUP, self.worker, ttl_us=30 * SECOND, gone=[])

    @verb
    def renew_old(self) -> Call:
        return call(duties.renew, self.old, self.worker, ttl_us=30 * SECOND)

    @verb
    def release_old(self) -> Call:
        return call(duties.release, self.old, self.worker)

    @verb
    def clean_up_under_the_old_term(self) -> Call:
        return call(duties.clean_up, self.old, self.worker, key_age_us=HOUR_US, worker_age_us=HOUR_US)

    @verb
    def clean_up(self) -> Call:
        return call(duties.clean_up, self.current, self.heir, key_age_us=HOUR_US, worker_age_us=HOUR_US)

    @verb
    def release(self) -> Call:
        return call(duties.release, self.current, self.heir)

    @verb
    def prune(self) -> Call:
        return call(prune, "default", after=BEGIN, before=FOREVER, look=10, under=(self.current, self.heir))

    @verb
    def enqueue(self) -> Call:
        return self.enqueuing(self.job("new"))

    @verb
    def claim(self) -> Call:
        return self.claiming(1)


class Schedules(Scene):
    """A schedule whose tick has come, and those who fire, change, pause and remove it."""

    name = "schedules"

    def schedule(self, cron: str) -> NewSchedule:
        return NewSchedule("nightly", cron, "UTC", "one", self.job("tick"), route_for("default", "work"))

    async def build(self) -> None:
        self.worker = await self.register()
        await self.do(put_schedule, self.schedule("* * * * *"), next_tick)
        await self.store.advance("61s")
        self.row: ScheduleRow = await self.do(find_schedule, "nightly")

    @verb
    def fire(self) -> Call:
        return call(fire, self.row, next_tick)

    @verb
    def postpone(self) -> Call:
        return call(postpone, self.row, ValueError("it cannot be read"))

    @verb
    def put_schedule(self) -> Call:
        return call(put_schedule, self.schedule("* * * * *"), next_tick)

    @verb
    def change_schedule(self) -> Call:
        return call(put_schedule, self.schedule("0 * * * *"), next_tick)

    @verb
    def pause_schedule(self) -> Call:
        return call(pause_schedule, "nightly")

    @verb
    def resume_schedule(self) -> Call:
        return call(resume_schedule, "nightly", next_tick)

    @verb
    def delete_schedule(self) -> Call:
        return call(delete_schedule, "nightly")

    @verb
    def run_now(self) -> Call:
        return call(run_now, "nightly", self.id("by hand"))
