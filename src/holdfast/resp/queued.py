"""Queues as lists: a pop of queue:<name> claims a job under a lease of the connection's worker.

The claim is committed before the reply is sent. What reaches nobody goes back. queue:processing is not a queue: it is
what the worker holds now, and an element that is removed from it is completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence

from holdfast.errors import BadPayload, LeaseLost
from holdfast.kernel import codec, queries
from holdfast.kernel.brokers import leases_of
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue as enqueue_jobs
from holdfast.kernel.ids import new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, LeaseRef, NewJob, Route
from holdfast.kernel.workers import list_routes
from holdfast.outcomes import Done
from holdfast.resp import jobs, plans, workers
from holdfast.resp.call import QUEUE, CallRefused, CommandCall, queue_of, space_of
from holdfast.resp.endings import PoppedJob
from holdfast.resp.frames import Reply
from holdfast.resp.plan import BadPlan, read_plan
from holdfast.resp.pops import PopWaiter
from holdfast.resp.records import HoldersSql, QueuePlace

PROCESSING = b"queue:processing"
_MOST = 1_000  # jobs that LRANGE and PEEK see
_LOOK = 10_000  # jobs that are looked at, of each set of capabilities, for those of a tenant


async def waiter(call: CommandCall, queues: Sequence[str], count: int) -> PopWaiter:
    """The connection's worker, as somebody who waits for jobs; refused if it is not registered."""
    id, epoch = call.client.worker_id, call.client.epoch
    return PopWaiter(id, epoch, await call.gateway.pops.identify(id, epoch), tuple(queues), count, space_of(call))


async def claim(call: CommandCall, queues: Sequence[str], count: int, seconds: float | None) -> list[PoppedJob]:
    """Jobs for the connection's worker. They go back if the reply does not go out."""
    popped = await call.gateway.pops.take(await waiter(call, queues, count), seconds)
    call.client.undelivered += popped
    return popped


async def pop(call: CommandCall, keys: Sequence[bytes], seconds: float | None) -> Reply:
    return (await pop_with_key(call, keys, seconds))[0]


async def pop_many(calls: Sequence[CommandCall]) -> list[Reply]:
    """The replies to the same call, many times: what each of them would pop, one after the other."""
    call, popped = calls[0], list[PoppedJob]()
    (queue,) = _queues(call, call.arguments[:1])
    while len(popped) < len(calls):
        some = await claim(call, [queue], len(calls) - len(popped), 0)
        if not some:
            break
        popped += some
    return [*(_as_popped(call, each) for each in popped), *[None] * (len(calls) - len(popped))]


def _as_popped(call: CommandCall, popped: PoppedJob) -> bytes:
    if popped.element is not None:
        return popped.element
    return popped.public.encode() if call.client.published else jobs.popped(popped.lease, popped.public)


async def pop_with_key(call: CommandCall, keys: Sequence[bytes], seconds: float | None) -> tuple[bytes | None, bytes]:
    """A job as its pop replies it, and the key it came from."""
    queues, client = _queues(call, keys), call.client
    popped = await _popped_before(call) if client.published else []
    popped = popped or await claim(call, queues, 1, seconds)
    if not popped:
        return None, b""
    client.unread = popped[0] if client.published else None
    return _as_popped(call, popped[0]), QUEUE + popped[0].lease.queue.encode()


async def _popped_before(call: CommandCall) -> list[PoppedJob]:
    """What the published worker was told to run, if it has not read the plan: it drops a reply that comes while it
    beats, and pops again. If it has, and reported nothing, there is no result: it does one job after the other."""
    client, pops = call.client, call.gateway.pops
    sent, unread = pops.delivered.over(client.id), client.unread
    if not sent:
        return []
    stands = await call.gateway.transact(_leave_unreported, _reporter(call), unread.lease.held if unread else None)
    pops.delivered.forget_others(sent, [unread.lease.held] if stands and unread else [])
    pops.freed(client.worker_id)
    client.unread = None
    if not stands or unread is None:
        return []
    client.undelivered.append(unread)
    return [unread]


async def _leave_unreported(tx: Transaction, who: jobs.Reporter, unread: LeaseRef | None) -> bool:
    """End the attempts of which no result will come; whether this one stands."""
    leases = await _held(tx, who)
    for lease in leases:
        if lease.held != unread:
            await jobs.give_up(tx, lease, "its worker took another job without a result")
    return any(lease.held == unread for lease in leases)


def _queues(call: CommandCall, keys: Sequence[bytes]) -> list[str]:
    if any(not key.startswith(QUEUE) or key == PROCESSING for key in keys):
        raise CallRefused("queue:<name> keys and plain lists cannot be popped together, nor queue:processing")
    return [queue_of(call, key) for key in keys]


def check_processing(call: CommandCall, target: bytes) -> None:
    if target != PROCESSING:
        raise CallRefused(f"{call.command} moves a job of a queue to queue:processing, which is what the worker holds")


async def enqueue(call: CommandCall) -> Reply:
    """LPUSH: a plan, as JSON with its tasks, is a job for workers that have its tools; anything else is raw data.

    How many wait then is counted up to 10,000, so that a push costs the same however long the queue is.
    """
    queue = queue_of(call, call.arguments[0])
    if call.arguments[0] == PROCESSING:
        raise CallRefused("queue:processing is what workers hold; it cannot be pushed to")
    made = [_job(call, queue, element) for element in call.arguments[1:]]
    await call.gateway.transact(enqueue_jobs, [job for job, _ in made], list({route for _, route in made}))
    return await length(call, call.arguments[0], most=_LOOK)


def _job(call: CommandCall, queue: str, element: bytes) -> tuple[NewJob, Route]:
    id, tenant = new_id(call.gateway.core.ports), space_of(call)
    value = _json(element)
    if isinstance(value, dict) and "tasks" in value:
        body = {name: value[name] for name in ("plan_id", "plan_description", "tasks") if name in value}
        try:
            plan = read_plan({"plan_id": str(id), **body})
        except BadPlan as problem:
            raise CallRefused(f"Invalid plan schema: {problem}") from None
        route = route_for(queue, plans.KIND, [f"tool:{command}" for command in plan.commands])
        payload = {"plan": plan.as_json(), "input": value.get("input"), "input_index": 0, "action_id": ""}
        kind = plans.KIND
    else:
        kind, route, payload = jobs.RAW, route_for(queue, jobs.RAW), dict(jobs.raw_payload(element))
    text = codec.encode(payload, what="an element", cap=16 << 20)
    return plans.new_job(id, kind, queue, route.id, tenant, text), route


def _json(element: bytes) -> object:
    try:
        return codec.decode_foreign(element, what="an element")
    except BadPayload:
        return None


async def length(call: CommandCall, key: bytes, *, most: int = queries.LOOK) -> int:
    """How many jobs wait in a queue; of queue:processing, how many the worker holds."""
    if key == PROCESSING:
        return len(await call.gateway.transact(_held, _reporter(call)))
    return await call.gateway.transact(queue_length, queue_of(call, key), space_of(call), most=most)


@reading
async def queue_length(tx: Transaction, queue: str, tenant: str, *, most: int) -> int:
    row = await tx.one(HoldersSql.queue_length, queue=queue, tenant=tenant, most=most)
    return row.jobs if row is not None else 0


@reading
async def queues_of(tx: Transaction, tenant: str) -> set[str]:
    """The queues in which a tenant has jobs that wait."""
    return {row.queue for row in await tx.many(HoldersSql.pending_of, tenant=tenant, cap=_LOOK) if row.jobs}


def _reporter(call: CommandCall) -> jobs.Reporter:
    return jobs.Reporter(call.client.worker_id, call.client.epoch, space_of(call))


async def look(call: CommandCall, first: int, last: int) -> Reply:
    """The jobs of a queue as JOB.STATUS shows them, those that come first at the right.

    Those of queue:processing as they were popped.
    """
    end = None if last == -1 else last + 1
    if call.arguments[0] == PROCESSING:
        leases = (await call.gateway.transact(_held, _reporter(call)))[first:end]
        names = await call.gateway.transact(plans.names_of, [each.id for each in leases if each.kind == plans.KIND])
        return [jobs.popped(each, names.get(each.id) or plans.public_id(each.id)) for each in leases]
    queue = queue_of(call, call.arguments[0])
    return await call.gateway.transact(_shown, queue, space_of(call), lambda found: found[::-1][first:end])


async def peek(call: CommandCall, queue: str, count: int) -> Reply:
    """How the jobs stand that would be popped next, the first first."""
    return await call.gateway.transact(_shown, queue, space_of(call), lambda found: found[:count])


@reading
async def _shown(tx: Transaction, queue: str, tenant: str, chosen: Callable[[list[int]], list[int]]) -> list[Reply]:
    """Those that are chosen among the jobs that come next."""
    seqs = chosen(await _next(tx, queue, tenant))
    described = await jobs.describe_all(tx, seqs)
    return [json.dumps(described[seq]).encode() for seq in seqs if seq in described]


async def _next(tx: Transaction, queue: str, tenant: str) -> list[int]:
    """What a tenant has waiting in a queue, the first first."""
    found: list[QueuePlace] = []
    for route in await list_routes(tx, since=0):
        if route.queue == queue:
            asked = {"route": route.id, "tenant": tenant, "look": _LOOK, "most": _MOST}
            found += await tx.many(HoldersSql.next_on_route, **asked)
    return [place.seq for place in sorted(found)[:_MOST]]


async def acknowledge(call: CommandCall) -> Reply:
    """LREM queue:processing: the job that this element is, is done."""
    if call.arguments[0] != PROCESSING:
        raise CallRefused("a job leaves its queue by a pop; LREM completes jobs of queue:processing")
    return await _acknowledged(call, _begin(call))


async def acknowledge_many(calls: Sequence[CommandCall]) -> list[Reply | Exception]:
    """The replies to these; what one of them is refused with does not concern the others."""
    replies: list[Reply | Exception] = []
    for call, ending in [(call, _begin(call)) for call in calls]:
        try:
            replies.append(await _acknowledged(call, ending))
        except Exception as problem:  # noqa: BLE001  its caller tells the client
            replies.append(problem)
    return replies


def _begin(call: CommandCall) -> asyncio.Future[bool] | None:
    """Complete the job that this element is, if this connection's worker is known to hold it."""
    element, client, delivered = call.arguments[2], call.client, call.gateway.pops.delivered
    sent = delivered.find_element(client.worker_id, element)
    if sent is None and isinstance(named := _named(element), str):
        known = delivered.find(client.worker_id, named)
        sent = known if known is not None and known.lease.kind != jobs.RAW else None
    if sent is None:
        return None
    lease = sent.lease
    return call.gateway.begin_end(client, sent, lambda _: jobs.ending_of(lease, Done(None)))


def _named(element: bytes) -> object:
    """The id of the job that an element names, if it is one as a pop has replied it."""
    value = _json(element)
    return value.get("job_id") if isinstance(value, dict) else None


async def _acknowledged(call: CommandCall, ending: asyncio.Future[bool] | None) -> Reply:
    if ending is not None and await ending:
        return 1
    element, client = call.arguments[2], call.client
    named = _named(element) or element.decode(errors="replace")
    await call.gateway.endings.passed()  # a request before this one may be about the same element
    done = await call.gateway.transact(_complete, _reporter(call), named, element)
    if done:
        call.gateway.pops.freed(client.worker_id)
    return int(done)


async def _complete(tx: Transaction, who: jobs.Reporter, named: object, element: bytes) -> bool:
    for lease in await _held(tx, who):
        if lease.kind == jobs.RAW:
            found = jobs.raw_bytes(json.loads(lease.payload)) == element
        else:
            found = await jobs.public_name(tx, lease.id) == named
        if found:
            with contextlib.suppress(LeaseLost):  # it was ended meanwhile; another may be the same element
                await jobs.end(tx, lease, Done(None))
                return True
    return False


@reading
async def _held(tx: Transaction, who: jobs.Reporter) -> list[Lease]:
    row = await workers.current(tx, who.worker, who.epoch)
    held = [owned.lease for owned in await leases_of(tx, row.seq, limit=_MOST)]
    return [lease for lease in held if lease.tenant == who.tenant]
