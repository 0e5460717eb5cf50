"""What the published AGX programs say with SET, GET and PING.

The worker of agenix-sh knows none of the worker commands. It names its tools with `SET worker:<id>:tools`, beats with
`PING <id>`, takes the bare id of a job from a pop, reads `job:<id>` and `plan:<id>`, and reports with
`SET job:<id>:status`. Each of these is a documented command in other words, with the same rights, owner and lease.
"""

from __future__ import annotations

import json
from functools import partial

from holdfast.errors import Unavailable
from holdfast.kernel.brokers import leases_of
from holdfast.kernel.database import Transaction
from holdfast.resp import jobs, views, workers
from holdfast.resp.call import CallRefused, CommandCall
from holdfast.resp.client import WORKER_ID, KeyPrincipal
from holdfast.resp.commands.jobs import report
from holdfast.resp.commands.workers import Begin, beat, begin_epoch, read_worker
from holdfast.resp.frames import OK, Reply
from holdfast.resp.workers import WorkerDescription

_VERSION = "published"


async def put(call: CommandCall) -> Reply | None:
    """SET of a key by which a worker registers or reports. None: it is another key."""
    match call.arguments[0].split(b":"):
        case [b"worker", id, b"tools"]:
            _check_plain(call)
            return await _register(call, id.decode(errors="replace"))
        case [b"job", id, (b"stdout" | b"stderr" | b"status") as part]:
            _check_plain(call)
            _check_right(call, "JOB.UPDATE")
            said = call.arguments[1].decode(errors="replace").replace("\0", "\ufffd")  # a tool may write any bytes
            body = {"status": said} if part == b"status" else {"status": "running", part.decode(): said}
            return await report(call, id.decode(errors="replace"), body)
        case _:
            return None


async def read(call: CommandCall) -> Reply:
    """GET of a live view."""
    key, client = call.arguments[0], call.client
    match key.split(b":"):
        case [b"job", _] | [b"job", _, (b"stdout" | b"stderr")]:
            _check_right(call, "JOB.GET")
        case [b"plan", id] if client.unread is not None:
            plan = json.loads(client.unread.lease.payload)["plan"]
            if plan["plan_id"].encode() == id:  # what it will run now, whatever is stored under this id
                client.unread = None
                return json.dumps(plan, ensure_ascii=False)
    return (await views.find(call, key)).as_string()


async def hear(call: CommandCall) -> None:
    """PING with the id of a worker: its heartbeat, and if need be its registration. Anything else is only echoed."""
    client, id = call.client, call.arguments[0].decode(errors="replace")
    principal = client.principal
    assert principal is not None
    if client.published and id == client.worker:
        if principal.may_call("WORKER.HEARTBEAT"):
            try:
                await beat(call, id)
            except Unavailable as problem:  # an error ends the worker, and its lease has time left
                call.gateway.core.ports.try_again(problem)
        return
    if client.worker is not None or id not in principal.workers or not WORKER_ID.fullmatch(id):
        return
    if not principal.may_call("WORKER.REGISTER"):
        return
    row = await call.gateway.transact(workers.find_worker, id, principal.tenant)
    said = {} if row is None else json.loads(row.metadata or "{}").get("registration", {})
    if row is None or not workers.is_alive(row) or said.get("agw_version") == _VERSION:
        await _begin(call, _described(call, id, []))


async def _register(call: CommandCall, id: str) -> Reply:
    _check_right(call, "WORKER.REGISTER")
    client = call.client
    if client.epoch is not None and not client.published:
        raise CallRefused("this connection has registered with WORKER.REGISTER, and says its tools there")
    tools = [name for each in call.text(1, "the tools").split(",") if (name := each.strip())]
    who = _described(call, id, tools)
    if client.principal == call.gateway.options.shared:  # AUTH has named nobody
        client.principal = await call.gateway.named_by_shared(id) or client.principal
    await _begin(call, who)
    return OK


def _described(call: CommandCall, id: str, tools: list[str]) -> WorkerDescription:
    said = {"worker_id": id, "hostname": call.client.address or "unknown", "agw_version": _VERSION, "takes": "plans"}
    return read_worker({**said, "capabilities": {"tools": tools}})


async def _begin(call: CommandCall, who: WorkerDescription) -> None:
    client = call.client
    if client.published and client.worker == who.id:  # it knows what it has
        before = await call.gateway.pops.identify(who.id, client.epoch)
        if before.capabilities == frozenset(who.capabilities):
            await beat(call, who.id)
            return
        begin: Begin = partial(workers.register, release=False)
    else:
        begin = _begin_without_results
    await begin_epoch(call, who, begin)
    client.published = True


async def _begin_without_results(
    tx: Transaction, who: WorkerDescription, principal: KeyPrincipal, incarnation: str, *, ttl_us: int
) -> int:
    """Begin an epoch. What the worker held was of a process that has ended: those attempts count, because a job that
    ends each process that reads it must not come back for ever."""
    seq = await workers.register(tx, who, principal, incarnation, ttl_us=ttl_us, release=False)
    for owned in await leases_of(tx, seq):
        await jobs.give_up(tx, owned.lease, "its worker began again without a result")
    return seq


def _check_plain(call: CommandCall) -> None:
    if len(call.arguments) != 2:
        raise CallRefused(f"SET of {call.arguments[0][:80].decode(errors='replace')} takes no options")


def _check_right(call: CommandCall, command: str) -> None:
    assert call.client.principal is not None
    if not call.client.principal.may_call(command):
        raise CallRefused(f"this key may not call {command}, which this stands for", "NOPERM")
