"""Answers: what a route returns becomes JSON in the form that `--json` prints, and openapi.json says its type."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Depends, Header, Query
from starlette.responses import Response

from holdfast.agents.values import CallRecord, RunRecord
from holdfast.http.api.routes import API, Endpoint, Handler, PageOf, Paging, PartOfPage
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.kernel.waiting import is_own_channel
from holdfast.machines.layer import LAYER
from holdfast.reasons import error_for_tenant, failure_for_tenant
from holdfast.text import REDACTED, Redactor
from holdfast.values import Page, as_json
from holdfast.values.jobs import FailureRecord, JobRecord

# Sizes: how many bytes an answer has at most, and what becomes of what does not fit.
#
# A page ends where it is full, and has a `next`; it is read in parts, so that the memory is bounded too. What is
# still
# too long is cut: its longest values end with a note that says where all of it is.


ANSWER = 4 * 1024 * 1024  # bytes
_TOGETHER = 100  # items that are read at a time
_LEAST = 128  # bytes of a value that always stay
_MOST_KEYS = 50  # of an object that keeps them all
_LONGEST = (65_536, 4_096, 512)  # bytes of a value in a list of records, until they fit

Read = Callable[[Paging], Awaitable[Page[Any]]]
Encode = Callable[[Iterable[object]], Awaitable[list[bytes]]]


def encoded(shown_answer: object) -> bytes:
    """JSON, as answers have it."""
    return json.dumps(shown_answer, ensure_ascii=False, separators=(",", ":"), default=str).encode(errors="replace")


@dataclass(slots=True)
class FullPage:
    """A page as text, while it fills. `next` is where it continues."""

    next: str | None
    looked: int = 0
    total: int | None = None
    items: list[bytes] = field(default_factory=list)

    @property
    def room(self) -> int:
        return ANSWER - sum(map(len, self.items))

    def take(self, part: Page[Any], items: Sequence[bytes]) -> None:
        self.items += items
        self.next, self.looked = part.next, self.looked + part.looked
        self.total = part.total if self.total is None else self.total

    def text(self) -> bytes:
        rest = {"next": self.next, "looked": self.looked, **({} if self.total is None else {"total": self.total})}
        return b'{"items":[' + b",".join(self.items) + b"]," + encoded(rest)[1:]


async def read_page(read: Read, asked: Paging, encode: Encode, *, first: int) -> FullPage:
    """As much of a page as fits into an answer, and at least one item.

    A part that has looked at fewer or more than it was asked for is the last: its list, or its look, has ended.
    """
    page, step = FullPage(asked.after), min(asked.limit, first)
    while True:
        part = await read(Paging(page.next, step))
        items = await encode(part)
        fitting = _fitting(items, page.room)
        if fitting == 0 and items and page.items:
            return page
        if fitting < len(items) > 1:
            page.total = part.total if page.total is None else page.total
            part = await read(Paging(page.next, max(1, fitting)))
            items = await encode(part)
        page.take(part, items)
        left = asked.limit - len(page.items)
        looked = part.whole if isinstance(part, PartOfPage) else part.looked
        if part.next is None or looked != step or left <= 0 or page.room <= 0:
            return page
        step = min(left, _TOGETHER)


def _fitting(items: Sequence[bytes], room: int) -> int:
    """How many of them fit."""
    for number, item in enumerate(items):
        room -= len(item) + 1
        if room < 0:
            return number
    return len(items)


def fitted(shown_answer: Any, note: Callable[[Any], str]) -> Any:
    """An answer that is too long, with its longest values cut. `note` says of a record where all of it is."""
    if isinstance(shown_answer, list):
        return _fitted_list(shown_answer, note)
    longest, short = ANSWER, shown_answer
    while len(encoded(short)) > ANSWER and longest > _LEAST:
        longest //= 2
        short = shortened(shown_answer, longest, note(shown_answer))
    return short


def _fitted_list(shown_answer: list[Any], note: Callable[[Any], str]) -> list[Any]:
    short, texts = shown_answer, [encoded(each) for each in shown_answer]
    for longest in _LONGEST:
        if max(map(len, texts)) > longest:  # else it is long because there are many
            short = [shortened(each, longest, note(each)) for each in shown_answer]
            texts = [encoded(each) for each in short]
            if _fitting(texts, ANSWER) == len(texts):
                return short
    return short[: _fitting(texts, ANSWER)]


def shortened(record: Any, longest: int, note: str) -> Any:
    """A record whose values have about so many bytes each; a value that is no record likewise."""
    if not isinstance(record, dict):
        return _Shortener(longest, note).value(record, 0)
    return {name: _Shortener(longest, note).value(each, 1) for name, each in record.items()}


class _Shortener:
    """Walks through one value and spends its bytes, first come, first served."""

    def __init__(self, left: int, note: str) -> None:
        self._left = left
        self._note = f"[cut: {note}]"

    def value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return self._list(value, depth)
        if isinstance(value, dict):
            return self._object(value, depth)
        self._left -= 8
        return value

    def _text(self, text: str) -> str:
        raw = text.encode(errors="replace")
        most = max(self._left, _LEAST)
        self._left -= len(raw)
        return text if len(raw) <= most else f"{raw[:most].decode(errors='ignore')}… {self._note}"

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        kept: list[Any] = []
        for each in items:
            if self._left <= 0:
                return [*kept, {"cut": self._note} if isinstance(each, dict) else self._note]
            kept.append(self.value(each, depth + 1))
        return kept

    def _object(self, members: dict[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, each in members.items():
            if self._left <= 0 and (depth > 1 or len(members) > _MOST_KEYS):
                return {**kept, "cut": self._note}
            self._left -= len(name)
            kept[name] = self.value(each, depth + 1)
        return kept


# What a program or a model was given, and what it gave: a viewer sees it without its secrets.
ARGUMENTS = frozenset(
    (
        *("payload", "input", "variables", "metadata", "result", "output", "data", "error", "blocks"),
        *("definition", "description", "instructions", "key", "plan_description", "tasks", "inputs", "prompt"),
        *("context", "message", "options", "progress", "reason", "refusal", "sentence", "text", "why"),
    )
)
_WRITTEN = "input_delta"  # a piece of arguments: what is secret in it may begin in the piece before
OF_THE_FLEET = ("model_changed", "run_ended", "turn_failed")  # events with words that are not for tenants
CUT = "holdfast-cut"  # the header of an answer that is not whole


def answering(endpoint: Endpoint) -> Handler:
    """The route as the framework calls it."""

    @functools.wraps(endpoint.function)
    async def answer(*args: Any, **options: Any) -> Response:
        encoder = AnswerEncoder(endpoint, options.get("seen"))
        status = success_of(endpoint)
        if isinstance(asked := options.get("page"), Paging):
            page = await read_page(_reading(endpoint, options), asked, encoder.encode_all, first=endpoint.first)
            return encoder.response(page.text(), status)
        value = await endpoint.function(*args, **options)
        if isinstance(value, Response):
            return value
        (text,) = await encoder.encode_all([value])
        return encoder.response(text, status)

    return answer


def _reading(endpoint: Endpoint, options: dict[str, Any]) -> Read:
    """Reads a part of a page. How many there are is counted with the first."""
    given = dict(options)

    async def read(paging: Paging) -> Page[Any]:
        found: Page[Any] = await endpoint.function(**{**given, "page": paging})
        given.update({"count": False} if "count" in given else {})
        return found

    return read


class AnswerEncoder:
    """How one answer is told: as who asks may see it, and no longer than answers are."""

    def __init__(self, endpoint: Endpoint, seen: PrincipalScope | None) -> None:
        self._endpoint, self._seen = endpoint, seen
        self._cut = False

    async def encode_all(self, values: Iterable[object]) -> list[bytes]:
        """What is taken out is looked for beside the event loop: values are long, and anybody writes them."""
        if self._seen is not None and (self._seen.principal.role == "viewer" or not self._seen.sees_fleet):
            return await asyncio.to_thread(lambda: list(map(self._encode, values)))
        return list(map(self._encode, values))

    def _encode(self, value: object) -> bytes:
        shown_answer = json_for(self._seen, value)
        text = encoded(shown_answer)
        if len(text) <= ANSWER or (self._seen is not None and self._seen.whole):
            return text
        self._cut = True
        return encoded(fitted(shown_answer, self._where))

    def response(self, text: bytes, status: int) -> Response:
        headers = {"cache-control": "no-store"} | ({CUT: "true"} if self._cut else {})
        return Response(text, status, headers, "application/json")

    def _where(self, record: Any) -> str:
        """Where all of a record is."""
        endpoint = self._endpoint
        id = str(record.get("id", "{id}")) if isinstance(record, dict) else "{id}"
        if endpoint.whole:
            return f"see GET {API}{endpoint.whole.replace('{id}', id)}"
        if offers_whole(endpoint):
            return "add whole=true to the request for all of it"
        return f"see GET {API}/{endpoint.noun}/{id}?whole=true"


def offers_whole(endpoint: Endpoint) -> bool:
    """Whether `whole=true` asks for values that are not cut. A record has bounds of its own, and a list has none."""
    shown_answer = model_of(endpoint) if endpoint.method == "GET" and not endpoint.whole else None
    return (
        shown_answer is not None
        and get_origin(shown_answer) is not list
        and "seen" in endpoint.function.__annotations__
    )


async def take_key(
    key: Annotated[
        str | None, Header(alias="Idempotency-Key", max_length=255, description="The same request again does nothing.")
    ] = None,
) -> None:
    """For openapi.json: the gate reads it, before the route is called."""


def dependencies_of(endpoint: Endpoint) -> list[Any]:
    """What a route takes besides the parameters of its function."""
    whole = [Depends(ask_whole)] if offers_whole(endpoint) else []
    return [*whole, *([Depends(take_key)] if endpoint.creates else [])]


async def ask_whole(
    seen: RequestScope,
    whole: Annotated[bool, Query(description="Cut no value, however long; a page may be shorter.")] = False,
) -> None:
    seen.whole = whole


def json_response(shown_answer: object, status: int = 200) -> Response:
    return Response(encoded(shown_answer), status, {"cache-control": "no-store"}, "application/json")


def json_for(seen: PrincipalScope | None, value: object) -> Any:
    """A value as JSON, as who asks may see it."""
    shown_answer = as_json(value if seen is None or seen.sees_fleet else without_fleet(value))
    return without_secrets(shown_answer) if seen is not None and seen.principal.role == "viewer" else shown_answer


def without_secrets(shown_answer: Any) -> Any:
    if isinstance(shown_answer, list):
        return [without_secrets(each) for each in shown_answer]
    if isinstance(shown_answer, dict):
        redactor = Redactor()
        if shown_answer.get("type") == _WRITTEN:
            shown_answer = {**shown_answer, "text": REDACTED}
        return {
            name: redactor.value(value, "arguments") if name in ARGUMENTS else without_secrets(value)
            for name, value in shown_answer.items()
        }
    return shown_answer


def without_fleet(value: Any) -> Any:
    """A value as who sees no fleet may see it, still in its own types: no worker, no file or line of the program."""
    match value:
        case JobRecord():
            value = replace(value, payload=_without_files(value))
        case CallRecord() if value.is_error:
            value = replace(value, output=_without_trace(value.output))
        case FailureRecord():
            return replace(value, message=error_for_tenant(value.error, value.message))
        case RunRecord() if value.error:
            value = replace(value, error=error_for_tenant(value.error_type, value.error))
        case Page():
            return Page(map(without_fleet, value), next=value.next, looked=value.looked, total=value.total)
        case Mapping():
            return {
                name: _without_trace(each) if name == "error" else without_fleet(each) for name, each in value.items()
            }
        case tuple() if hasattr(value, "_replace"):
            return type(value)(*map(without_fleet, value))
        case tuple() | list() | set() | frozenset():
            return type(value)(map(without_fleet, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    given = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    return replace(value, **{name: _FIELDS.get(name, without_fleet)(each) for name, each in given.items()})


def _without_trace(error: Any) -> Any:
    """A failure without its traceback, which names files of the program and has lines of them."""
    if isinstance(error, Mapping):
        return without_fleet({name: each for name, each in error.items() if name != "trace"})
    return without_fleet(error)


def _error(error: Any) -> Any:
    """The failure of a job, an attempt or a turn: its lane is not told, and words about the fleet are others."""
    if not isinstance(error, Mapping):
        return without_fleet(error)
    left = {name: each for name, each in error.items() if name != "lane"}
    if isinstance(words := left.get("message"), str):
        left["message"] = error_for_tenant(left.get("type"), failure_for_tenant(left.get("kind", ""), words))
    return _without_trace(left)


def event_without_fleet(event: dict[str, Any]) -> dict[str, Any]:
    """An event of a run as who sees no fleet may read it: no lane, and nothing of the account of a provider."""
    match event:
        case {"type": "model_changed", "cause": str(cause), "reason": str(words)}:
            return {**event, "reason": failure_for_tenant(cause, words)}
        case {"type": "run_ended", "error_type": str(kind), "error": str(words)}:
            return {**event, "error": error_for_tenant(kind, words)}
        case {"type": "turn_failed", "kind": str(kind), "message": str(words)}:
            return {**event, "message": failure_for_tenant(kind, words)}
        case _:
            return event


def _without_files(job: JobRecord) -> Any:
    """What a job was given; of an execution, without the files of its machine, which are the program's."""
    if job.layer != LAYER or not isinstance(job.payload, dict) or not isinstance(job.payload.get("order"), dict):
        return job.payload
    order = {name: each for name, each in job.payload["order"].items() if name != "bundle"}
    return {**job.payload, "order": order}


_FIELDS: Mapping[str, Callable[[Any], Any]] = {  # of records, and what is left of them
    "error": _error,
    "channel": lambda channel: None if channel and is_own_channel(channel) else channel,
    "worker": lambda worker: None if worker else worker,
}


def success_of(endpoint: Endpoint) -> int:
    """The status of an answer that is no problem."""
    if endpoint.method == "DELETE" and model_of(endpoint) is None:
        return 204
    return endpoint.made if endpoint.creates else 200


def other_answers(endpoint: Endpoint) -> dict[int | str, dict[str, Any]]:
    """For openapi.json: what else may come that is no problem, and in which form."""
    last = endpoint.path.rpartition("/")[2]
    if last in ("stream", "events") and model_of(endpoint) is None:
        frames = {"description": "Server-sent events.", "content": {"text/event-stream": {}}}
        return {200: frames, 204: {"description": "There is nothing after what was seen last."}}
    if last == "export":
        return {200: {"description": "A SQLite file.", "content": {"application/vnd.sqlite3": {}}}}
    if last == "result":
        return {202: {"description": "The run has not ended yet.", "content": {"application/json": {}}}}
    if endpoint.creates and endpoint.made != 200:
        again = "The answer to the first request with this Idempotency-Key."
        return {200: {"description": again, "content": {"application/json": {}}}}
    return {}


def model_of(endpoint: Endpoint) -> Any:
    """The type of the answer, for openapi.json."""
    declared = get_type_hints(endpoint.function, include_extras=True).get("return")
    if get_origin(declared) is Page:
        (item,) = get_args(declared)
        return PageOf.__class_getitem__(item)
    return None if declared is Response else declared
