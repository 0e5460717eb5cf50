"""The faults of a rule, applied: in place of an answer, to the events of one, and to their sending."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.models.protocol import Wire
from holdfast.models.simulator.http import RequestRefused, SimulatorConnection
from holdfast.models.simulator.strict import media_in

Sleep = Callable[[float], Awaitable[None]]
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_BROKEN_EVENT = b'event: content_block_delta\ndata: {"type": "content_block_delta", \n\n'
_BROKEN_LINE = b'{"custom_id": "broken", \n'
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Cut(Exception):
    """The connection is to be dropped."""


def refuse_by_rule(do: Mapping[str, Any]) -> None:
    """Raise what a rule says in place of an answer, if it says that."""
    if do.get("overloaded"):
        raise RequestRefused("Overloaded", status=529, type="overloaded_error")
    if "status" in do:
        status = do["status"]
        headers = {name: str(value) for name, value in (do.get("headers") or {}).items()}
        if "retry_after" in do:
            headers["retry-after"] = str(do["retry_after"])
        raise RequestRefused(
            do.get("message", f"refused by rule with status {status}"),
            status=status,
            type=do.get("type", _TYPES.get(status, "api_error")),
            code=do.get("code"),
            headers=headers,
        )
    if (do.get("cut") or {}).get("headers"):
        raise Cut


def refuse_media(body: Wire, do: Mapping[str, Any]) -> None:
    """Refuse a request with a picture or a document in it, if a rule says so: `{"media": "image"}`, or true."""
    wanted = do.get("media")
    if not wanted:
        return
    for number, message in enumerate(body["messages"]):
        for place, kind in media_in(f"messages.{number}.content", message["content"]):
            if wanted in (True, kind):
                raise RequestRefused(f"{place}.{kind}.source: refused by rule: Could not process {kind}")


def distorted(events: list[Wire], do: Mapping[str, Any]) -> list[Wire]:
    """The events of an answer as a rule would have them."""
    if do.get("truncated_input"):
        events = _without_last_input(events)
    if do.get("duplicate_ids"):
        events = [_call_with(event, id="toolu_again") for event in events]
    if do.get("no_ids"):
        events = [_call_with(event, id=None) for event in events]
    if do.get("no_names"):
        events = [_call_with(event, name="") for event in events]
    if do.get("unknown_block"):
        events = _with_block(events)
    if (rule := do.get("unknown_event")) is not None:
        events = _inserted(events, rule, {"type": "weather_report", "sky": "blue"})
    if (rule := do.get("error_event")) is not None:
        error = {"type": rule.get("type", "overloaded_error"), "message": rule.get("message", "failed by rule")}
        events = [*events[: rule.get("after", 1)], {"type": "error", "error": error}]
    return events


def _inserted(events: list[Wire], rule: Any, event: Wire) -> list[Wire]:
    after = rule.get("after", 1) if isinstance(rule, Mapping) else 1
    return [*events[:after], event, *events[after:]]


def _without_last_input(events: list[Wire]) -> list[Wire]:
    """Without the last piece of each tool call's arguments."""
    kept: list[Wire] = []
    for event, following in zip(events, [*events[1:], {}], strict=True):
        piece = (event.get("delta") or {}).get("type") == "input_json_delta"
        if not (piece and following.get("type") == "content_block_stop"):
            kept.append(event)
    return kept


def _call_with(event: Wire, **changed: Any) -> Wire:
    block = event.get("content_block")
    if block is None or block["type"] != "tool_use":
        return event
    return {**event, "content_block": {**block, **changed}}


def _with_block(events: list[Wire]) -> list[Wire]:
    end = next(at for at, event in enumerate(events) if event["type"] == "message_delta")
    index = sum(event["type"] == "content_block_start" for event in events)
    block = {"type": "hologram", "data": "", "angles": []}
    deltas = [{"type": "hologram_delta", "data": "ab", "angles": [1]}, {"type": "hologram_delta", "data": "c"}]
    added: list[Wire] = [{"type": "content_block_start", "index": index, "content_block": block}]
    added += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    added.append({"type": "content_block_stop", "index": index})
    return events[:end] + added + events[end:]


class FaultySender:
    """Sends events, or lines, as well or badly as a rule says; `sent` of them are out."""

    def __init__(self, connection: SimulatorConnection, do: Mapping[str, Any], sleep: Sleep, pace: float = 0.0) -> None:
        self._connection, self._do, self._sleep, self._pace = connection, do, sleep, pace
        self._bytes = 0
        self.sent = 0

    async def send_all(self, events: list[Wire]) -> None:
        if not self._do and not self._pace:  # nothing to do in between: one write is ten times as fast
            await self._connection.send(b"".join(map(frame, events)))
            self.sent = len(events)
            return
        for event in events:
            await self._send(event)

    async def send_line(self, line: bytes) -> None:
        await self._before("lines", _BROKEN_LINE)
        await self._out(line)
        self.sent += 1

    async def end_lines(self) -> None:
        """What a rule puts after the last line."""
        await self._before("lines", _BROKEN_LINE)

    async def _send(self, event: Wire) -> None:
        await self._before("events", _BROKEN_EVENT)
        if self._pace and event["type"] == "content_block_delta":
            await self._sleep(self._pace)
        await self._out(frame(event))
        self.sent += 1

    async def _before(self, unit: str, broken: bytes) -> None:
        do = self._do
        if (do.get("cut") or {}).get(unit) == self.sent:
            raise Cut
        if (stall := do.get("stall")) is not None and stall.get("after", 0) == self.sent:
            await self._connection.hang(stall.get("seconds"))
        if (pings := do.get("pings")) is not None and pings.get("after", 0) == self.sent:
            for _ in range(pings["count"]):
                await self._sleep(pings.get("seconds", 0))
                await self._out(frame({"type": "ping"}))
        if (malformed := do.get("malformed")) is not None and malformed.get("after", 0) == self.sent:
            await self._out(broken)

    async def _out(self, data: bytes) -> None:
        last = (self._do.get("cut") or {}).get("bytes")
        if last is not None and self._bytes + len(data) > last:
            if rest := data[: last - self._bytes]:
                await self._connection.send(rest)
            raise Cut
        self._bytes += len(data)
        if (drip := self._do.get("drip")) is None:
            await self._connection.send(data)
            return
        for at in range(0, len(data), drip["bytes"]):
            await self._sleep(drip["seconds"])
            await self._connection.send(data[at : at + drip["bytes"]])


def frame(event: Wire) -> bytes:
    return f"event: {event['type']}\ndata: {_ENCODER.encode(event)}\n\n".encode()
