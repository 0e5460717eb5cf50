"""JOB.CLAIM and what follows it: leases with their tokens, for workers that want to be honest about them."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from holdfast.errors import BadPayload, LeaseLost
from holdfast.kernel import codec
from holdfast.kernel.broker_rows import OwnedLease, Renewal
from holdfast.kernel.brokers import find_lease
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import renew_one
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease
from holdfast.kernel.waiting import report_progress
from holdfast.outcomes import Done, Fail, Snooze, TryAgain
from holdfast.resp import jobs, plans, queued, workers
from holdfast.resp.call import CallRefused, Command, CommandCall, integer, queue_of, space_of
from holdfast.resp.endings import PoppedJob, SentLease
from holdfast.resp.frames import OK, Reply
from holdfast.resp.records import Epoch

_MOST = 100
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LONGEST = timedelta(days=1)


async def claim(call: CommandCall) -> Reply:
    queue, rest = queue_of(call, b"queue:" + call.arguments[0].removeprefix(b"queue:")), list(call.arguments[1:])
    count, block = 1, 0
    while rest:
        option = rest.pop(0).upper()
        if option == b"COUNT" and rest:
            count = integer(rest.pop(0))
        elif option == b"BLOCK" and rest:
            block = integer(rest.pop(0))
        else:
            raise CallRefused("syntax error")
    if not 1 <= count <= _MOST or not 0 <= block <= 3_600_000:
        raise CallRefused(f"COUNT is 1 to {_MOST}, BLOCK 0 to 3600000 milliseconds")
    popped = await queued.claim(call, [queue], count, 0 if call.client.executing else block / 1_000)
    return [_claimed(lease, public) for lease, public, *_ in popped]


def _claimed(lease: Lease, public: str) -> Reply:
    payload = jobs.popped(lease, public)
    if lease.kind == jobs.RAW:
        payload = json.dumps(
            {"job_id": public, "data": json.loads(lease.payload), "attempt": lease.attempts + 1}
        ).encode()
    return [payload, f"{lease.epoch}.{lease.token}", (lease.lease_until - lease.claimed_at) // 1_000]


class _NamedLease:
    """A job and the token by which the caller says that it holds it."""

    def __init__(self, call: CommandCall) -> None:
        self.public = call.text(0, "a job id")
        self.token = call.text(1, "a token")
        self.who = jobs.Reporter(call.client.worker_id, call.client.epoch, space_of(call))

    def remembered(self, call: CommandCall) -> SentLease | None:
        """The lease, if this server has told the worker of it under this token."""
        sent = call.gateway.pops.delivered.find(self.who.worker, self.public)
        return sent if sent is not None and str(sent.lease.fence) == self.token else None

    async def lease(self, tx: Transaction) -> tuple[OwnedLease, Epoch]:
        """The lease, if it is still current, and the epoch that holds it: else LEASELOST."""
        row = await workers.current(tx, self.who.worker, self.who.epoch)
        known = await jobs.find(tx, self.public, self.who.tenant)
        owned = None if known is None else await find_lease(tx, known.job.id, self.who.worker)
        lost = owned is None or owned.worker != row.seq or owned.lease_until <= row.now
        if owned is None or lost or f"{owned.epoch}.{owned.token}" != self.token:
            raise LeaseLost(self.public, self.token)
        return owned, row.epoch


Act = Callable[[Transaction, OwnedLease, Epoch], Awaitable[Reply]]


async def _held(call: CommandCall, act: Act) -> Reply:
    """Do something under the lease that the call names."""
    holding = _NamedLease(call)

    async def operation(tx: Transaction) -> Reply:
        return await act(tx, *await holding.lease(tx))

    try:
        return await call.gateway.transact(operation)
    except LeaseLost as lost:
        raise CallRefused(str(lost), "LEASELOST") from None


async def renew(call: CommandCall) -> Reply:
    ttl_us = call.gateway.dead_after_us
    if len(call.arguments) > 2:
        ttl_us = min(max(integer(call.arguments[2]), 1) * 1_000, workers.NEVER_US)

    renewed: list[PoppedJob] = []

    async def act(tx: Transaction, owned: OwnedLease, epoch: Epoch) -> Reply:
        if await renew_one(tx, Renewal(*owned.lease.held, ttl_us), ceiling_us=workers.NEVER_US) is None:
            raise LeaseLost(owned.id, owned.lease.fence)
        renewed[:] = [PoppedJob(owned.lease, call.text(0, "a job id"), epoch.incarnation)]
        return OK

    reply = await _held(call, act)
    call.gateway.pops.deliver(renewed, call.client)
    return reply


async def complete(call: CommandCall) -> Reply:
    return await _end(call, Done(_json(call, 2) if len(call.arguments) > 2 else None))


async def _end(call: CommandCall, outcome: jobs.Outcome) -> Reply:
    """End an attempt: together with others if the job was popped here, else by itself."""
    sent = _NamedLease(call).remembered(call)
    if sent is not None and await call.gateway.end(call.client, sent, lambda _: jobs.ending_of(sent.lease, outcome)):
        return OK

    async def act(tx: Transaction, owned: OwnedLease, _: Epoch) -> Reply:
        await jobs.end(tx, owned.lease, outcome)
        return OK

    reply = await _held(call, act)
    call.gateway.pops.freed(call.client.worker_id)
    return reply


async def fail(call: CommandCall) -> Reply:
    message, rest = call.text(2, "an error"), [each.upper() for each in call.arguments[3:]]
    outcome: TryAgain | Fail
    if rest == [b"NEVER"]:
        outcome = Fail(message, "agx_failed")
    elif len(rest) == 2 and rest[0] == b"RETRY":
        outcome = TryAgain(_span(rest[1]), message, "agx_failed", "")
    elif not rest:
        outcome = TryAgain(timedelta(0), message, "agx_failed", "")
    else:
        raise CallRefused("syntax error")
    return await _end(call, outcome)


async def snooze(call: CommandCall) -> Reply:
    return await _end(call, Snooze(_span(call.arguments[2])))


async def give_back(call: CommandCall) -> Reply:
    async def act(tx: Transaction, owned: OwnedLease, _: Epoch) -> Reply:
        parents = [owned.parent] if owned.parent is not None else []
        await complete_and_settle(tx, [release(owned.lease)], parents)
        return OK

    reply = await _held(call, act)
    call.gateway.pops.freed(call.client.worker_id)
    return reply


async def progress(call: CommandCall) -> Reply:
    value = _json(call, 2)

    async def act(tx: Transaction, owned: OwnedLease, _: Epoch) -> Reply:
        said = {**value} if isinstance(value, dict) else {"progress": value}
        said["attempt"] = workers.attempt_of(owned.attempts, owned.rescues)
        await report_progress(tx, owned.lease, codec.encode(said, what="progress", cap=jobs.RESULT_CAP))
        return OK

    return await _held(call, act)


async def put(call: CommandCall) -> Reply:
    queue = queue_of(call, b"queue:" + call.arguments[0].removeprefix(b"queue:"))
    kind, value = call.text(1, "a kind"), _json(call, 2)
    if not _KIND.fullmatch(kind) or kind in (plans.KIND, jobs.RAW):
        raise CallRefused(
            "a kind has 1 to 128 letters, digits, dots, hyphens and underscores, and is not one of the gateway's"
        )
    route = route_for(queue, kind)
    job = new_id(call.gateway.core.ports)
    text = codec.encode(value, what="a payload", cap=call.gateway.core.settings.payload_cap)
    new = plans.new_job(job, kind, queue, route.id, space_of(call), text)
    await call.gateway.transact(enqueue, [new], [route])
    return plans.public_id(job)


def _json(call: CommandCall, at: int) -> Any:
    try:
        return codec.decode_foreign(call.arguments[at], what="an argument")
    except BadPayload as problem:
        raise CallRefused(str(problem)) from None


def _span(text: bytes) -> timedelta:
    milliseconds = integer(text)
    if not 0 <= milliseconds <= _LONGEST / timedelta(milliseconds=1):
        raise CallRefused("a delay is 0 to 86400000 milliseconds")
    return timedelta(milliseconds=milliseconds)


COMMANDS = (
    Command("JOB.ENQUEUE", "queue kind json", "Enqueue a job; its id.", put, writes=True, rate=6_000),
    Command(
        "JOB.CLAIM",
        "queue [COUNT n] [BLOCK milliseconds]",
        "Claim jobs: for each the job, its token, and how long its lease is.",
        claim,
        writes=True,
        waits=True,
    ),
    Command("JOB.RENEW", "id token [milliseconds]", "Extend a lease.", renew, writes=True),
    Command(
        "JOB.COMPLETE",
        "id token [json]",
        "End a job well, with its result.",
        complete,
        writes=True,
        together=lambda _: True,
    ),
    Command("JOB.FAIL", "id token error [NEVER] [RETRY milliseconds]", "End an attempt badly.", fail, writes=True),
    Command("JOB.SNOOZE", "id token milliseconds", "Hand a job back, to be taken later.", snooze, writes=True),
    Command("JOB.RELEASE", "id token", "Hand a job back at once, at no cost.", give_back, writes=True),
    Command("JOB.PROGRESS", "id token json", "Say how far a job is.", progress, writes=True),
)
