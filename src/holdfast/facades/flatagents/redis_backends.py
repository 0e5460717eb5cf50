"""Registries and pools on a Redis server: the same calls, each one script on the server (`redis_backends.lua`).

A Redis server has no Holdfast tables, so nothing here takes part in the kernel: no lists of jobs, no retention. What
the document asks for holds: claims are atomic, and what comes after a reap is ignored and logged.
"""

from __future__ import annotations

import builtins
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from holdfast import validation
from holdfast.clock import Ports
from holdfast.errors import BadSetting, DuplicateWorker, MissingExtra, NotFound, StoreUnavailable, UsageError
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
from holdfast.facades.flatagents.registration import BackendAddress, check_id, filter_of, shown_time
from holdfast.facades.flatagents.work import REMEMBERED, acting
from holdfast.kernel import codec
from holdfast.kernel.ids import new_id

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger("holdfast.flatagents")

DEFAULT_URL = "redis://127.0.0.1:6379/0"
PREFIX = "flatagents:"
_CAP = 1 << 20
_REFUSED = -1
_ENDED = frozenset({"terminated", "lost"})


class Server:
    """One Redis server, and the script on it."""

    def __init__(self, url: str) -> None:
        try:
            from redis import Redis
            from redis.exceptions import ConnectionError, TimeoutError
        except ImportError as missing:
            raise MissingExtra("redis", "a redis backend") from missing
        self.url = url
        self.client: Redis = Redis.from_url(url, decode_responses=True)
        self._script = self.client.register_script(files(__package__).joinpath("redis_backends.lua").read_text())
        self._away = (ConnectionError, TimeoutError)

    def do(self, verb: str, *args: object) -> Any:
        """Run one verb of the script. `StoreUnavailable` while the server cannot be reached."""
        try:
            return self._script(keys=[PREFIX], args=[verb, *map(str, args)])
        except self._away as problem:
            raise StoreUnavailable(f"the Redis server does not answer: {problem}") from problem

    def close(self) -> None:
        self.client.close()


class RedisBackend:
    """A backend on a Redis server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def address(self) -> BackendAddress:
        return BackendAddress("redis", self._server.url)

    def close(self) -> None:
        self._server.close()


class RedisRegistrationBackend(RedisBackend):
    """A registry on a Redis server."""

    def __init__(
        self, url: str = DEFAULT_URL, *, heartbeat_interval: float = HEARTBEAT_INTERVAL, server: Server | None = None
    ) -> None:
        super().__init__(server or Server(url))
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
        kept_metadata = dict(metadata or {})
        codec.encode(kept_metadata, what="metadata", cap=_CAP)
        fields = [part for name, value in kept_metadata.items() for part in (name, json.dumps(value))]
        if not self._server.do("heartbeat", check_id(worker_id), *fields):
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
        id, row, *more = self._server.do("worker", check_id(worker_id))
        return _seen(id, row, *more)[0] if row else None

    def list(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None, **more: Any
    ) -> builtins.list[WorkerRecord]:
        wanted = filter_of(filter, status, more)
        found = [_seen(*each) for each in sorted(self._server.do("workers", _crowd(wanted)))]
        return [worker for worker, silent in found if _fits(worker, silent, wanted)]


def _crowd(wanted: WorkerFilter) -> str:
    """Where those who could fit are: workers that have ended are many, and mostly not asked for."""
    statuses = _statuses(wanted)
    return "alive" if wanted.stale_threshold_seconds is not None or (statuses and not statuses & _ENDED) else "workers"


def _statuses(wanted: WorkerFilter) -> set[str]:
    return {wanted.status} if isinstance(wanted.status, str) else set(wanted.status or ())


def _seen(id: str, row: Sequence[str], kept_metadata: Sequence[str], held: str, now: str) -> tuple[WorkerRecord, int]:
    """A worker, and for how many microseconds it has been silent."""
    fields, more = _pairs(row), {name: json.loads(value) for name, value in _pairs(kept_metadata).items()}
    said = json.loads(fields["said"])
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


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _fits(worker: WorkerRecord, silent_us: int, wanted: WorkerFilter) -> bool:
    statuses, stale = _statuses(wanted), wanted.stale_threshold_seconds
    return (
        (not statuses or worker.status in statuses)
        and (wanted.capability is None or wanted.capability in worker.capabilities)
        and (wanted.pool_id is None or wanted.pool_id == worker.pool_id)
        and (stale is None or (worker.status not in _ENDED and silent_us > stale * 1e6))
    )


class RedisWorkBackend(RedisBackend):
    """Pools on a Redis server."""

    def __init__(self, url: str = DEFAULT_URL, *, server: Server | None = None) -> None:
        super().__init__(server or Server(url))
        self._pools: dict[str, RedisWorkPool] = {}

    def pool(self, name: str) -> RedisWorkPool:
        codec.check_text(name, what="the name of a pool")
        return self._pools.setdefault(name, RedisWorkPool(self._server, name))


class RedisWorkPool:
    """Items on a Redis server. `fence` is the token of a claim."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._claims: OrderedDict[str, str] = OrderedDict()
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
        """As the other pools: one script takes the item and says what it is, with the fence of this very claim."""
        found = self._server.do("claim", self.name, check_id(worker_id), int(acting.get() == worker_id))
        if found == _REFUSED:
            raise UnknownWorker(f"worker {worker_id!r:.80} is lost: register it again.")
        if not found:
            return None
        item = _item(*found)
        self._claims[item.id] = item.fence or ""
        while len(self._claims) > REMEMBERED:
            self._claims.popitem(last=False)
        return item

    def complete(self, item_id: str, result: Any = None, **claim: str | None) -> bool:
        return self._end(item_id, "succeeded", codec.encode(result, what="a result", cap=_CAP), claim)

    def fail(self, item_id: str, error: str | None = None, **claim: str | None) -> bool:
        return self._end(item_id, "failed", "it failed" if error is None else str(error), claim)

    def release(self, item_id: str, **claim: str | None) -> bool:
        return self._end(item_id, "released", "", claim)

    def _end(self, item_id: str, outcome: str, text: str, claim: Mapping[str, str | None]) -> bool:
        worker = claim.get("worker_id")
        fence = claim.get("fence") or ("" if worker else self._claims.get(item_id, ""))
        ended = self._server.do("end", item_id, fence, worker or acting.get() or "", outcome, text)
        if ended == _REFUSED:
            raise NotFound(f"there is no work item {item_id!r:.80} on this server.")
        if not ended:
            log.warning("pool %s: what was said of item %s (%s) is ignored: too late", self.name, item_id, outcome)
        return bool(ended)

    def size(self) -> int:
        return int(self._server.do("count", self.name, "pending"))

    def claimed(self) -> int:
        return int(self._server.do("count", self.name, "claimed"))

    def release_by_worker(self, worker_id: str) -> int:
        return int(self._server.do("release_by_worker", check_id(worker_id), self.name))

    releaseByWorker = release_by_worker  # noqa: N815  as the document has it

    def get(self, item_id: str) -> WorkItem:
        id, row = self._server.do("item", item_id)
        if not row:
            raise NotFound(f"there is no work item {item_id!r:.80} on this server.")
        return _item(id, row)

    def items(self, status: str | None = None, *, limit: int = 1_000) -> list[WorkItem]:
        if status not in (None, "pending", "claimed", "done", "poisoned"):
            raise BadSetting(f"an item's status must be pending, claimed, done or poisoned; got {status!r}.")
        return [_item(*each) for each in self._server.do("items", self.name, status or "all", limit)]


def _item(id: str, flat: Sequence[str]) -> WorkItem:
    row = _pairs(flat)
    return WorkItem(
        id=id,
        data=json.loads(row["data"]),
        claimed_by=row.get("claimed_by"),
        attempts=int(row["attempts"]),
        max_retries=int(row["max_retries"]),
        status=row["status"],
        result=json.loads(row["result"]) if "result" in row else None,
        error=row.get("error"),
        fence=row["token"] if row["status"] == "claimed" else None,
    )
