"""One call to the simulated provider: witnessed, refused or answered, billed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.errors import UsageError
from holdfast.models import facts
from holdfast.models.protocol import Wire, request_hash
from holdfast.models.simulator.faults import Cut, FaultySender, distorted, refuse_by_rule, refuse_media
from holdfast.models.simulator.http import HttpRequest, RequestRefused, SimulatorConnection
from holdfast.models.simulator.state import SimulatorState
from holdfast.models.simulator.strict import check_request
from holdfast.models.steps import Rejected
from holdfast.models.wire import count_tokens, to_events, to_message


class Exchange:
    """One call, from receipt to its line in the witness."""

    def __init__(self, state: SimulatorState, connection: SimulatorConnection, request: HttpRequest) -> None:
        state.calls += 1
        self._state, self._connection, self._request = state, connection, request
        self._number = state.calls
        self._headers = state.headers(self._number)
        self._account = request.headers.get("x-api-key") or request.headers.get("authorization") or ""
        self._call = request.headers.get("x-holdfast-call", "")
        self._body: Any = None
        self._do: Mapping[str, Any] = {}
        self._about: dict[str, Any] = {}

    async def run(self) -> None:
        self._receive()
        self._tell("sent")
        try:
            await self._answer()
        except RequestRefused as refused:
            self._state.stats["rejected"] += 1
            self._tell("done", status=refused.status, rejected=str(refused), billed=None)
            await self._state.refuse(self._connection, refused, self._headers)
        except Cut:
            self._connection.cut()

    def _receive(self) -> None:
        request = self._request
        with suppress(ValueError):
            self._body = _decoded(request.body) if request.body else None
        body = self._body if isinstance(self._body, dict) else {}
        model = str(body.get("model", ""))
        self._about = {
            "n": self._number,
            "call": self._call,
            "path": request.path,
            "model": model,
            "hash": request_hash(body) if body and "requests" not in body else "",
            "request_id": self._headers["request-id"],
        }
        rules = enumerate(self._state.rules)
        facts = request.method, request.path, model, self._call
        fit = [rule for n, rule in rules if rule.fits(*facts, f"{self._state.seed}/{n}")]
        self._do = fit[0].do if fit else {}

    def _tell(self, event: str, **more: Any) -> None:
        self._state.stats[event] += 1
        self._state.witness.write(event=event, at=self._state.clock.wall_us(), **self._about, **more)

    async def _answer(self) -> None:
        if "slow_headers" in self._do:
            await self._connection.hang(self._do["slow_headers"])
        try:
            refuse_by_rule(self._do)
        except Cut:
            self._tell("done", status=None, rejected=None, billed=None, ended="cut")
            raise
        self._authenticate()
        await self._route()

    async def _route(self) -> None:
        match self._request.method, self._request.path:
            case "POST", "/v1/messages":
                await self._messages()
            case "POST", "/v1/messages/count_tokens":
                self._check(counting=True)
                await self._whole({"input_tokens": count_tokens(self._body)})
            case "GET", "/v1/models":
                models = [_model(name) for name in facts.names()]
                await self._whole({"data": models, "has_more": False, "first_id": None, "last_id": None})
            case _:
                raise RequestRefused("Not found", status=404, type="not_found_error")

    def _authenticate(self) -> None:
        if not self._account:
            raise RequestRefused("x-api-key header is required", status=401, type="authentication_error")
        if self._account.endswith("invalid"):
            raise RequestRefused("invalid x-api-key", status=401, type="authentication_error")
        if "anthropic-version" not in self._request.headers:
            raise RequestRefused("anthropic-version: header is required")

    def _check(self, *, counting: bool) -> None:
        if self._request.body and self._body is None:
            raise RequestRefused("The request body is not valid JSON")
        check_request(self._body, key=self._state.key, account=self._account, counting=counting)
        self._state.cabinet.check_references(self._body, self._account, self._state.clock.wall_us())

    async def _messages(self) -> None:
        self._check(counting=False)
        body = self._body
        refuse_media(body, self._do)
        try:
            turn = self._state.script.turn(body)
        except Rejected as problem:
            raise RequestRefused(str(problem)) from problem
        except UsageError as problem:
            raise RequestRefused(str(problem), status=500, type="api_error") from problem
        state = self._state
        whole = to_events(turn, body, call=self._call, key=state.key, account=self._account, cache=state.cache)
        events = distorted(whole, self._do)
        if body.get("stream"):
            await self._stream(events, whole)
        else:
            await self._whole(_whole_message(events), billed=True)

    async def _whole(self, value: Wire, *, billed: bool = False) -> None:
        self._state.stats["status 200"] += 1
        bill = value["usage"] if billed else None
        self._tell("done", status=200, rejected=None, billed=bill, ended="complete")
        await self._connection.answer(200, value, self._headers)

    async def _stream(self, events: list[Wire], whole: list[Wire]) -> None:
        state = self._state
        state.stats["status 200"] += 1
        sender = FaultySender(self._connection, self._do, state.clock.sleep, state.pace)
        ended = "gone"
        try:
            await self._connection.start({**self._headers, "cache-control": "no-cache"})
            await sender.send_all(events)
            ended = "error" if events[-1]["type"] == "error" else "complete"
        except Cut:
            ended = "cut"
            raise
        finally:
            self._tell("done", status=200, rejected=None, billed=_bill(whole, events[: sender.sent]), ended=ended)
        await self._connection.finish()


def _decoded(data: bytes) -> Any:
    value = json.loads(data)
    if b"\\ud" in data.lower():  # perhaps half of a surrogate pair, which is not text, though Python reads it
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _bill(whole: list[Wire], sent: list[Wire]) -> Wire:
    """What is paid for an answer of which this much was produced: all that was read, and what was written so far."""
    usage: Wire = {**whole[0]["message"]["usage"], **whole[-2]["usage"]}
    if sent and sent[-1]["type"] == "message_stop":
        return usage
    written, of = (sum(event["type"] == "content_block_delta" for event in events) for events in (sent, whole))
    return {**usage, "output_tokens": max(1, usage["output_tokens"] * min(written, of) // max(of, 1))}


def _whole_message(events: list[Wire]) -> Wire:
    """An answer without streaming, or the refusal that a rule has put into it."""
    if events[-1]["type"] == "error":
        raise RequestRefused(events[-1]["error"]["message"], status=500, type=events[-1]["error"]["type"])
    return to_message(events)


def _model(name: str) -> Wire:
    known = facts.facts_for(name)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": known.lifecycle,
        "max_input_tokens": known.window,
        "max_tokens": known.max_output,
    }
