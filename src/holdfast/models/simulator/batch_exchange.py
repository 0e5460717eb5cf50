"""One call to the simulated provider about batches.

What is wrong with a batch as such is refused at once; what is wrong with a request of it shows in its result.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

from holdfast.models.batches import CUSTOM_ID, MOST_REQUESTS, line_bytes
from holdfast.models.simulator.batches import SimulatedBatch
from holdfast.models.simulator.exchange import Exchange
from holdfast.models.simulator.faults import Cut, FaultySender
from holdfast.models.simulator.http import RequestRefused, need
from holdfast.models.simulator.state import chosen

PATH = "/v1/messages/batches"
_ONE = re.compile(rf"{PATH}/(?P<id>[^/]+)(?P<verb>/cancel|/results)?")
_LONGEST_PAGE = 1000


class BatchExchange(Exchange):
    async def _route(self) -> None:
        method, path = self._request.method, self._request.path
        if path == PATH and method in ("POST", "GET"):
            await (self._make() if method == "POST" else self._list())
            return
        found = _ONE.fullmatch(path)
        if found is None:
            raise RequestRefused("Not found", status=404, type="not_found_error")
        batch = self._state.bay.find(self._account, found["id"])
        match method, found["verb"]:
            case "GET", None:
                await self._whole(batch.wire(self._host))
            case "DELETE", None:
                self._state.bay.delete(batch)
                await self._whole({"id": batch.id, "type": "message_batch_deleted"})
            case "POST", "/cancel":
                self._state.bay.cancel(batch, self._do.get("slow_batch", 0))
                await self._whole(batch.wire(self._host))
            case "GET", "/results":
                await self._results(batch)
            case _:
                raise RequestRefused("Method not allowed", status=405)

    @property
    def _host(self) -> str:
        return self._request.headers.get("host", "")

    async def _make(self) -> None:
        if self._body is None:
            raise RequestRefused("The request body is not valid JSON")
        batch = self._state.bay.make(self._account, self._call, _requests(self._body), self._do)
        answer = batch.wire(self._host)
        if (lost := self._do.get("lost_answer")) is None:
            await self._whole(answer)
            return
        says = lost if isinstance(lost, Mapping) else {}
        if "status" in says:
            raise RequestRefused("The answer was lost by rule", status=says["status"], type="api_error")
        self._tell("done", status=None, rejected=None, billed=None, ended="cut")
        if says.get("stall"):
            await self._connection.hang(None)
        raise Cut

    async def _list(self) -> None:
        asked = {name: values[-1] for name, values in parse_qs(self._request.query).items()}
        for name in asked:
            need(name in ("limit", "after_id", "before_id", "beta"), f"{name}: Extra inputs are not permitted")
        limit = asked.get("limit", "20")
        need(
            limit.isdigit() and 1 <= int(limit) <= _LONGEST_PAGE,
            f"limit: Input should be between 1 and {_LONGEST_PAGE}",
        )
        after, before = asked.get("after_id"), asked.get("before_id")
        need(after is None or before is None, "Only one of after_id and before_id may be given")
        batches, more = self._state.bay.page(self._account, limit=int(limit), after=after, before=before)
        data = [batch.wire(self._host) for batch in batches]
        first, last = (batches[0].id, batches[-1].id) if batches else (None, None)
        await self._whole({"data": data, "has_more": more, "first_id": first, "last_id": last})

    async def _results(self, batch: SimulatedBatch) -> None:
        do = {**batch.do, **self._do}
        if not batch.ended or do.get("gone"):
            raise RequestRefused(
                f"Message batch {batch.id} has no available results", status=404, type="not_found_error"
            )
        state = self._state
        state.stats["status 200"] += 1
        sender = FaultySender(self._connection, do, state.clock.sleep)
        ended = "gone"
        try:
            await self._connection.start({**self._headers, "content-type": "application/x-jsonl"})
            for line in _lines(batch, do, state.seed):
                await sender.send_line(line)
            await sender.end_lines()
            ended = "complete"
        except Cut:
            ended = "cut"
            raise
        finally:
            self._tell("done", status=200, rejected=None, billed=None, ended=ended)
        await self._connection.finish()


def _requests(body: Any) -> list[tuple[str, Any]]:
    """The requests of a batch, if it is one. What they ask for is nobody's business yet."""
    need(isinstance(body, dict), "Input should be a valid dictionary")
    for name in body:
        need(name == "requests", f"{name}: Extra inputs are not permitted")
    requests = body.get("requests")
    need(isinstance(requests, list), "requests: Field required")
    need(bool(requests), "requests: List should have at least 1 item after validation, not 0")
    need(len(requests) <= MOST_REQUESTS, f"requests: List should have at most {MOST_REQUESTS} items")
    found: dict[str, Any] = {}
    for at, request in enumerate(requests):
        need(isinstance(request, dict), f"requests.{at}: Input should be a valid dictionary")
        for name in request:
            need(name in ("custom_id", "params"), f"requests.{at}.{name}: Extra inputs are not permitted")
        id, params = request.get("custom_id"), request.get("params")
        need(
            isinstance(id, str) and CUSTOM_ID.fullmatch(id) is not None,
            f"requests.{at}.custom_id: String should match pattern '^{CUSTOM_ID.pattern}$'",
        )
        need(isinstance(params, dict), f"requests.{at}.params: Field required")
        need(id not in found, f"requests.{at}.custom_id: {id} is not unique within the batch")
        found[id] = params
    return list(found.items())


def _lines(batch: SimulatedBatch, do: Mapping[str, Any], seed: int) -> Iterator[bytes]:
    """The results as a rule would have them sent."""
    asked = list(batch.requests)
    if do.get("reorder"):
        asked.sort(key=lambda each: hashlib.sha256(f"{seed}/{each.custom_id}".encode()).digest())
    for each in asked:
        assert each.result is not None

        def hit(fault: str, number: int = each.number) -> bool:
            return chosen(do.get(fault), number, f"{seed}/{fault}")

        if hit("missing"):
            continue
        line = line_bytes(each.custom_id, each.result)
        if hit("pad"):
            bare = line_bytes(each.custom_id, each.result, padding="")
            line = line_bytes(each.custom_id, each.result, padding="x" * max(0, do["pad"]["bytes"] - len(bare)))
        yield line
        if hit("duplicate"):
            yield line
