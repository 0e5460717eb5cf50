"""Registries and pools on a Redis server: the same calls, each one script on the server (`redis_backends.lua`).

A Redis server has no Holdfast tables, so nothing here takes part in the kernel: no lists of jobs, no retention. What
the document asks for holds: claims are atomic, and what comes after a reap is ignored and logged.
"""

from __future__ import annotations

import builtins
import json
import logging
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from holdfast import validation
from holdfast.clock import Ports
from holdfast.errors import BadSetting, DuplicateWorker, MissingExtra, NotFound, UsageError
from holdfast.facades.flatagents.records import (
    HEARTBEAT_INTERVAL,
    MAX_RETRIES,
    STALE_AFTER,
    UnknownWorker,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    WorkItem,
)
from holdfast.facades.flatagents.registration import check_id, filter_of
from holdfast.facades.flatagents.work import acting
from holdfast.facades.flatagents.worker_rows import shown_time
from holdfast.kernel import codec
from holdfast.kernel.ids import new_id

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger("holdfast.flatagents")

DEFAULT_URL = "redis://127.0.0.1:6379/0"
PREFIX = "flatagents:"
_CAP = 1 << 20


class Server:
    """One Redis server, and the script on it."""

    def __init__(self, url: str) -> None:
        try:
            from redis import Redis
        except ImportError as missing:
            raise MissingExtra("redis", "a redis backend") from missing
        self.client: Redis = Redis.from_url(url, decode_responses=True)
        self._script = self.client.register_script(files(__package__).joinpath("redis_backends.lua").read_text())

    def do(self, verb: str, *args: object) -> Any:
        return self._script(keys=[PREFIX], args=[verb, *map(str, args)])

    def close(self) -> None:
        self.client.close()


class RedisRegistrationBackend:
    """A registry on a Redis server."""

    def __init__(
        self, url: str = DEFAULT_URL, *, heartbeat_interval: float = HEARTBEAT_INTERVAL, server: Server | None = None
    ) -> None:
        self._server = server or Server(url)
        self.heartbeat_interval = heartbeat_interval

    @property
    def stale_threshold_seconds(self) -> float:
        return STALE_AFTER * self.heartbeat_interval

    def register(self, worker: WorkerRegistration) -> WorkerRecord:
        said = {
            "host": worker.host,
            "pid": worker.pid,
            "capabilities": list(worker.capabilities or ()),
            "started_at": worker.started_at,
            "pool_id": worker.pool_id,
        }
        id, stale = check_id(worker.worker_id), round(self.stale_threshold_seconds * 1e6)
        if not self._server.do("register", id, stale, json.dumps(said)):
            raise DuplicateWorker(id, worker.host or "", worker.pid or 0)
        record = self.get(id)
        assert record is not None
        return record

    def heartbeat(self, worker_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        told = codec.encode(dict(metadata), what="metadata", cap=_CAP) if metadata else ""
        if not self._server.do("heartbeat", check_id(worker_id), told):
            raise self._unknown(worker_id)

    def update_status(self, worker_id: str, status: str) -> None:
        if not self._server.do("update_status", check_id(worker_id), codec.check_text(status, what="a status")):
            raise self._unknown(worker_id)

    updateStatus = update_status  # noqa: N815  as the document has it

    def _unknown(self, worker_id: str) -> UnknownWorker:
        known = self.get(worker_id)
        if known is None:
            return UnknownWorker(f"no worker {worker_id!r:.80} is registered: call register first.")
        return UnknownWorker(f"worker {worker_id!r:.80} is {known.status}: register it again.")

    def get(self, worker_id: str) -> WorkerRecord | None:
        return (self._seen(check_id(worker_id)) or (None, 0))[0]

    def list(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None, **more: Any
    ) -> builtins.list[WorkerRecord]:
        wanted = filter_of(filter, status, more)
        names: Any = self._server.client.smembers(f"{PREFIX}workers")
        found = [self._seen(id) for id in sorted(names)]
        return [each[0] for each in found if each is not None and _fits(*each, wanted)]

    def _seen(self, id: str) -> tuple[WorkerRecord, int] | None:
        """A worker, and for how many microseconds it has been silent."""
        row, held, now = self._server.do("worker", id)
        fields = dict(zip(row[::2], row[1::2], strict=True))
        if not fields:
            return None
        said, more = json.loads(fields["said"]), json.loads(fields["more"]) or {}
        said |= {name: more.pop(name) for name in ("host", "pid") if name in more}  # where it is now
        record = WorkerRecord(
            worker_id=id,
            host=said["host"],
            pid=said["pid"],
            capabilities=tuple(said["capabilities"]),
            started_at=said["started_at"] or shown_time(int(fields["begun"])),
            pool_id=said["pool_id"],
            status=fields["status"],
            last_heartbeat=shown_time(int(fields["beat"])),
            current_task_id=held or more.get("current_task_id"),
            metadata=more,
            incarnation=int(fields["incarnation"]),
        )
        return record, int(now) - int(fields["beat"])

    def close(self) -> None:
        self._server.close()


def _fits(worker: WorkerRecord, silent_us: int, wanted: WorkerFilter) -> bool:
    statuses = {wanted.status} if isinstance(wanted.status, str) else set(wanted.status or ())
    stale, gone = wanted.stale_threshold_seconds, worker.status in ("terminated", "lost")
    return (
        (not statuses or worker.status in statuses)
        and (wanted.capability is None or wanted.capability in worker.capabilities)
        and (wanted.pool_id is None or wanted.pool_id == worker.pool_id)
        and (stale is None or (not gone and silent_us > stale * 1e6))
    )


class RedisWorkBackend:
    """Pools on a Redis server."""

    def __init__(self, url: str = DEFAULT_URL, *, server: Server | None = None) -> None:
        self._server = server or Server(url)
        self._pools: dict[str, RedisWorkPool] = {}

    def pool(self, name: str) -> RedisWorkPool:
        codec.check_text(name, what="the name of a pool")
        return self._pools.setdefault(name, RedisWorkPool(self._server, name))

    def close(self) -> None:
        self._server.close()


class RedisWorkPool:
    """Items on a Redis server. `fence` is the token of a claim."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._claims: dict[str, str] = {}
        self.name = name

    def push(self, item: Any, options: Mapping[str, Any] | None = None, **more: Any) -> str:
        asked = {**(options or {}), **more}
        if unknown := sorted(asked.keys() - {"max_retries"}):
            raise UsageError(f"{unknown[0]!r} is not an option of push; there is max_retries.")
        tries = validation.whole(asked.get("max_retries", MAX_RETRIES), "max_retries", least=1)
        id = str(new_id(Ports()))
        self._server.do("push", id, self.name, codec.encode(item, what="a work item", cap=_CAP), tries)
        return id

    def claim(self, worker_id: str) -> WorkItem | None:
        from redis.exceptions import ResponseError

        try:
            id = self._server.do("claim", self.name, check_id(worker_id), int(acting.get() == worker_id))
        except ResponseError as problem:
            raise UnknownWorker(f"worker {worker_id!r:.80} is lost: register it again.") from problem
        if not id:
            return None
        item = self.get(id)
        self._claims[id] = item.fence or ""
        return item

    def complete(self, item_id: str, result: Any = None, **claim: str | None) -> bool:
        return self._end(item_id, "succeeded", codec.encode(result, what="a result", cap=_CAP), claim)

    def fail(self, item_id: str, error: str | None = None, **claim: str | None) -> bool:
        return self._end(item_id, "failed", "it failed" if error is None else str(error), claim)

    def release(self, item_id: str, **claim: str | None) -> bool:
        return self._end(item_id, "released", "", claim)

    def _end(self, item_id: str, outcome: str, text: str, claim: Mapping[str, str | None]) -> bool:
        from redis.exceptions import ResponseError

        worker = claim.get("worker_id")
        fence = claim.get("fence") or ("" if worker else self._claims.get(item_id, ""))
        try:
            ended = bool(self._server.do("end", item_id, fence, worker or acting.get() or "", outcome, text))
        except ResponseError as problem:
            raise NotFound(f"there is no work item {item_id!r:.80} on this server.") from problem
        if not ended:
            log.warning("pool %s: what was said of item %s (%s) is ignored: too late", self.name, item_id, outcome)
        return ended

    def size(self) -> int:
        count: Any = self._server.client.zcard(f"{PREFIX}pool:{self.name}")
        return int(count)

    def claimed(self) -> int:
        return len(self.items("claimed"))

    def release_by_worker(self, worker_id: str) -> int:
        return int(self._server.do("release_by_worker", check_id(worker_id), self.name))

    releaseByWorker = release_by_worker  # noqa: N815  as the document has it

    def get(self, item_id: str) -> WorkItem:
        row: Any = self._server.client.hgetall(f"{PREFIX}item:{item_id}")
        if not row:
            raise NotFound(f"there is no work item {item_id!r:.80} on this server.")
        return WorkItem(
            id=item_id,
            data=json.loads(row["data"]),
            claimed_by=row.get("claimed_by"),
            attempts=int(row["attempts"]),
            max_retries=int(row["max_retries"]),
            status=row["status"],
            result=json.loads(row["result"]) if "result" in row else None,
            error=row.get("error"),
            fence=row["token"] if row["status"] == "claimed" else None,
        )

    def items(self, status: str | None = None, *, limit: int = 1_000) -> list[WorkItem]:
        if status not in (None, "pending", "claimed", "done", "poisoned"):
            raise BadSetting(f"an item is pending, claimed, done or poisoned, not {status!r}.")
        names: Any = self._server.client.smembers(f"{PREFIX}items:{self.name}")
        found = [self.get(id) for id in sorted(names, reverse=True)]
        return [item for item in found if status in (None, item.status)][:limit]
