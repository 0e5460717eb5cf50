"""Anthropic as a provider, through its official SDK, which nothing else imports. It costs two seconds, so not before a
call, unless a worker has it made ready.

The SDK opens the connection, knows the headers and makes the errors; the stream is read as bytes and decoded here,
for its typed events cost three times as much and hide the pings. Its retries are off: the runtime owns them.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.errors import MissingExtra, how_to_install
from holdfast.models.batches import BatchItem, BatchLine, BatchStatus, Upload, check_items, read_lines, status_of
from holdfast.models.facts import WithoutQueries, place_of
from holdfast.models.failures import Bought, ModelFailure, refused, retry_after
from holdfast.models.protocol import Request, ResponseHead, StoredFile, Wire
from holdfast.models.sse import Patience, read_events

if TYPE_CHECKING:
    from anthropic import AnthropicError, AsyncAnthropic
    from httpx2 import Response

_KEY = "ANTHROPIC_API_KEY"
# Where the SDK finds a key, or another way to pay or to reach a provider.
_CREDENTIALS = (
    *(_KEY, "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE", "ANTHROPIC_CONFIG_DIR"),
    *("ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_IDENTITY_TOKEN_FILE", "ANTHROPIC_FEDERATION_RULE_ID"),
)


class AnthropicProvider:
    """Anthropic's models, or those of a server at `base_url` that speaks its API."""

    name = "anthropic"
    key = _KEY

    def __init__(self, base_url: Callable[[], str] = lambda: "") -> None:
        self._base_url = base_url

    def open(self, model: str) -> AnthropicModel:
        if (advice := self.advice_on_key()) is not None:
            raise ModelFailure("bad_request", f"model {model}: {advice}", bought="no")
        return AnthropicModel(base_url=self._base_url() or None)

    def lack(self) -> str | None:
        if self.advice_on_key() is not None:
            return f"there is no key: {_KEY} is not set"
        if not sdk_is_there():
            return f"the provider's SDK is not installed: {how_to_install('anthropic')}"
        return None

    def credential(self) -> str:
        """The place, and a digest of the key and of what else in the URL says who pays."""
        place = place_of(self._base_url() or self.name)
        key = os.environ.get(_KEY, "") + place.secret
        return f"{place.url}#{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def advice_on_key(self) -> str | None:
        if self._base_url() or any(os.environ.get(variable) for variable in _CREDENTIALS) or _has_profiles():
            return None
        return f"there is no key for the provider. Set {_KEY} where the workers run, or use a scripted: model."


@cache
def sdk_is_there() -> bool:
    return importlib.util.find_spec("anthropic") is not None


def _has_profiles() -> bool:
    """Whether the SDK may find a profile. Not every user has a home: in a container it may be a mere number."""
    try:
        return Path.home().joinpath(".config", "anthropic").is_dir()
    except RuntimeError:
        return False


# The Message Batches API, over an HTTP client that somebody else knows.
#
# A submit that failed before its last byte left us is surely none. After that only a clean refusal says so; whatever
# else
# happens, the provider may have the batch.


_PATH = "/v1/messages/batches"
_PAGE = 100
_ASKING = 60.0  # seconds for an answer about a batch
_IDLE = 120.0  # seconds without a byte of the results


class MessageBatches(ABC):
    """`Batches`, for who can send a request and read its answer."""

    @abstractmethod
    async def _ask(
        self,
        method: str,
        path: str,
        *,
        total: float,
        query: Mapping[str, object] | None = None,
        upload: Upload | None = None,
        call: str = "",
        answered: Callable[[ResponseHead], None] | None = None,
    ) -> bytes:
        """The whole body of the answer; `ModelFailure` for every other."""

    @abstractmethod
    def _download(self, path: str, idle: float) -> AsyncGenerator[bytes, None]:
        """The body of the answer as it comes; `ModelFailure("cut")` if it ends before it is whole."""

    async def submit_batch(
        self, items: Sequence[BatchItem], *, call: str, total: float, answered: Callable[[ResponseHead], None]
    ) -> BatchStatus:
        check_items(items)
        upload = Upload(items)
        try:
            answer = await self._ask("POST", _PATH, total=total, upload=upload, call=call, answered=answered)
        except ModelFailure as failure:
            if not upload.handed_over:
                failure.bought = "no"
            raise
        return status_of(_decoded(answer, "unknown"), "unknown")

    async def get_batch(self, id: str) -> BatchStatus:
        return status_of(await self._about("GET", f"{_PATH}/{quote(id, safe='')}"))

    async def list_batches(self, since_us: int) -> list[BatchStatus]:
        found: list[BatchStatus] = []
        query: dict[str, object] = {"limit": _PAGE}
        while True:
            page = await self._about("GET", _PATH, query)
            batches = [status_of(each) for each in _listed(page)]
            found += [batch for batch in batches if batch.created_us >= since_us]
            if not batches or not page.get("has_more") or batches[-1].created_us < since_us:
                return found
            if query.get("after_id") == batches[-1].id:
                raise ModelFailure("malformed", f"two pages of batches end in {batches[-1].id}.", bought="no")
            query["after_id"] = batches[-1].id

    async def cancel_batch(self, id: str) -> BatchStatus:
        return status_of(await self._about("POST", f"{_PATH}/{quote(id, safe='')}/cancel"))

    async def batch_results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        try:
            async with (
                aclosing(self._download(f"{_PATH}/{quote(id, safe='')}/results", _IDLE)) as chunks,
                aclosing(read_lines(chunks)) as lines,
            ):
                async for line in lines:
                    yield line
        except ModelFailure as failure:
            failure.bought = "no"
            raise

    async def _about(self, method: str, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """An object that says how things are. Asking buys nothing, however it fails."""
        try:
            return _decoded(await self._ask(method, path, total=_ASKING, query=query), "no")
        except ModelFailure as failure:
            failure.bought = "no"
            raise


def _decoded(answer: bytes, bought: Bought) -> dict[str, Any]:
    try:
        value = json.loads(answer.decode())
    except (ValueError, RecursionError) as problem:
        raise ModelFailure("malformed", f"the answer is not JSON: {answer[:200]!r}.", bought=bought) from problem
    if not isinstance(value, dict):
        raise ModelFailure("malformed", f"the answer is not an object: {answer[:200]!r}.", bought=bought)
    return value


def _listed(page: dict[str, Any]) -> list[Any]:
    data = page.get("data")
    if not isinstance(data, list):
        raise ModelFailure("malformed", "the list of batches has no data.", bought="no")
    return data


_LIMITS = "anthropic-ratelimit-"
_ABOVE = 60.0  # seconds by which the SDK's own limits are longer than ours
_GOODBYE = 1.0  # seconds after the last event for the connection to become reusable
_LOGGERS = ("httpx2", "anthropic._base_client")  # they log the URL of each request
_WITHOUT_QUERIES = WithoutQueries()
_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")


class AnthropicModel(MessageBatches):
    """The Messages API, and batches of it.

    Without `api_key` and `base_url` the SDK finds them as it documents (`ANTHROPIC_API_KEY` …).
    """

    def __init__(self, api_key: str | None = None, base_url: str | None = None, *, connect: float = 10.0) -> None:
        self._api_key, self._connect = api_key, connect
        self._place = None if base_url is None else place_of(base_url)
        self._made: AsyncAnthropic | None = None

    async def _client(self) -> AsyncAnthropic:
        if self._made is None:
            made = await asyncio.to_thread(self._make)  # seconds, in which the event loop must live
            if self._made is None:
                self._made = made
        return self._made

    def _make(self) -> AsyncAnthropic:
        sdk, place = _imported(), self._place
        if place is None:
            return sdk(api_key=self._api_key, max_retries=0)
        if place.query:
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_WITHOUT_QUERIES)
        return sdk(
            api_key=self._api_key,
            base_url=place.url,
            default_headers=place.headers,
            default_query=dict(place.parameters),
            max_retries=0,
        )

    async def warm(self) -> None:
        await self._client()

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        client = await self._client()
        patience = Patience(request.idle, request.total)
        from httpx2 import HTTPError

        async with self._opened(client, request, patience, answered) as response, aclosing(_bytes(response)) as chunks:
            ended = False
            try:
                async with aclosing(read_events(chunks, patience)) as events:
                    async for event in events:
                        if event["type"] == "error":
                            raise refused(response.status_code, event, response.headers, streaming=True)
                        ended = event["type"] == "message_stop"
                        yield event
                        if ended:
                            break
            except ModelFailure as failure:
                failure.request_id = failure.request_id or response.headers.get("request-id")
                raise
            except HTTPError as problem:
                raise _cut(problem, response.headers.get("request-id")) from problem
            if not ended:
                raise _cut(None, response.headers.get("request-id"))
            await _drain(chunks)

    @asynccontextmanager
    async def _opened(
        self, client: AsyncAnthropic, request: Request, patience: Patience, answered: Callable[[ResponseHead], None]
    ) -> AsyncIterator[Response]:
        from anthropic import AnthropicError

        body = {**request.body(), "stream": True}
        try:
            async with asyncio.timeout_at(patience.next()):
                response = await self._post(client, "/v1/messages", body, request, stream=True)
        except TimeoutError:
            raise patience.lost() from None
        except AnthropicError as problem:
            raise _failure(problem, answered) from problem
        try:
            answered(_head(response.status_code, response.headers))
            yield response
        finally:
            await response.aclose()

    async def _post(self, client: AsyncAnthropic, path: str, body: Wire, request: Request, *, stream: bool) -> Response:
        from httpx2 import Response

        headers = {"x-holdfast-call": request.call} if request.call else {}
        if request.betas:
            headers["anthropic-beta"] = ",".join(request.betas)
        options = self._options(headers, request.total)
        with _credentials():
            response: Response = await client.post(path, cast_to=Response, body=body, options=options, stream=stream)
        return response

    def _options(self, headers: Mapping[str, str], total: float, query: Mapping[str, object] | None = None) -> Any:
        """What the SDK gets for a request besides its body."""
        from httpx2 import Timeout

        limit = Timeout(total + _ABOVE, connect=self._connect)
        return {"headers": dict(headers), "timeout": limit, "params": dict(query or {})}

    async def count_tokens(self, request: Request) -> int:
        client = await self._client()
        from anthropic import AnthropicError

        body = {key: value for key, value in request.body().items() if key in _COUNTED}
        try:
            async with asyncio.timeout(request.idle):
                response = await self._post(client, "/v1/messages/count_tokens", body, request, stream=False)
            return int(json.loads(response.content.decode())["input_tokens"])
        except TimeoutError:
            raise ModelFailure("timeout", f"no count arrived within {request.idle:g}s.", bought="no") from None
        except AnthropicError as problem:
            raise _failure(problem, lambda _: None) from problem
        except (KeyError, TypeError, ValueError, RecursionError) as problem:
            raise ModelFailure("malformed", f"the count cannot be read: {problem!r}.", bought="no") from problem

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        total: float,
        query: Mapping[str, object] | None = None,
        upload: Upload | None = None,
        call: str = "",
        answered: Callable[[ResponseHead], None] | None = None,
    ) -> bytes:
        client = await self._client()
        from anthropic import AnthropicError
        from httpx2 import Response

        tell = answered or (lambda _: None)
        headers = {"x-holdfast-call": call} if call else {}
        if upload is not None:
            headers["content-length"] = str(upload.size)  # otherwise it would be sent in chunks, its size unknown
        options = self._options(headers, total, query)
        try:
            with _credentials():
                async with asyncio.timeout(total):
                    response: Response = await (
                        client.get(path, cast_to=Response, options=options)
                        if method == "GET"
                        else client.post(path, cast_to=Response, content=upload, options=options)
                    )
        except TimeoutError:
            raise ModelFailure("timeout", f"no answer arrived within {total:g}s.") from None
        except AnthropicError as problem:
            raise _failure(problem, tell) from problem
        tell(_head(response.status_code, response.headers))
        return response.content

    async def _download(self, path: str, idle: float) -> AsyncGenerator[bytes, None]:
        client = await self._client()
        from anthropic import AnthropicError
        from httpx2 import HTTPError, Response

        options = self._options({"accept": "application/binary"}, idle)
        late = ModelFailure("timeout", f"nothing arrived for {idle:g}s.")
        try:
            with _credentials():
                async with asyncio.timeout(idle):
                    response: Response = await client.get(path, cast_to=Response, options=options, stream=True)
        except TimeoutError:
            raise late from None
        except AnthropicError as problem:
            raise _failure(problem, lambda _: None) from problem
        try:
            async with aclosing(_bytes(response)) as chunks:
                while True:
                    async with asyncio.timeout(idle):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
        except TimeoutError:
            raise late from None
        except HTTPError as problem:
            raise _cut(problem, response.headers.get("request-id")) from problem
        finally:
            await response.aclose()

    async def upload_file(
        self, path: Path, media_type: str, *, expires_in: int | None = None, total: float = 600.0
    ) -> StoredFile:
        client = await self._client()
        from anthropic import AnthropicError, omit

        limit = self._options({}, total)["timeout"]
        kept = omit if expires_in is None else expires_in
        try:
            with _credentials():
                async with asyncio.timeout(total):
                    made = await client.files.upload(
                        file=(path.name, path, media_type), expires_in_seconds=kept, timeout=limit
                    )
        except TimeoutError:
            raise ModelFailure("timeout", f"the file was not uploaded within {total:g}s.", bought="no") from None
        except AnthropicError as problem:
            raise _failure(problem, lambda _: None) from problem
        expires = None if made.expires_at is None else round(made.expires_at.timestamp() * 1e6)
        return StoredFile(made.id, made.filename, made.mime_type, made.size_bytes, expires)

    async def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            await made.close()


def _head(status: int, headers: Mapping[str, str]) -> ResponseHead:
    return ResponseHead(
        status=status,
        request_id=headers.get("request-id"),
        organization=headers.get("anthropic-organization-id"),
        retry_after=retry_after(headers),
        limits={k.lower()[len(_LIMITS) :]: v for k, v in headers.items() if k.lower().startswith(_LIMITS)},
    )


def _imported() -> type[AsyncAnthropic]:
    try:
        from anthropic import AsyncAnthropic
    except ImportError as problem:
        raise MissingExtra("anthropic", "an Anthropic model") from problem
    return AsyncAnthropic


@contextmanager
def _credentials() -> Iterator[None]:
    try:
        yield
    except TypeError as problem:  # how the SDK says that it found none
        raise ModelFailure("auth", f"{problem} Set {_KEY}.", bought="no") from problem


async def _bytes(response: Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the last event, so that the connection can serve the next call; the answer is whole anyway."""
    from httpx2 import HTTPError

    with suppress(HTTPError, TimeoutError):
        async with asyncio.timeout(_GOODBYE):
            async for _ in chunks:
                pass


def _failure(problem: AnthropicError, answered: Callable[[ResponseHead], None]) -> ModelFailure:
    """What an exception of the SDK before the stream means."""
    from anthropic import APIConnectionError, APIStatusError, APITimeoutError
    from httpx2 import ConnectError, ConnectTimeout, PoolTimeout

    match problem:
        case APIStatusError():
            headers: Mapping[str, str] = problem.response.headers
            answered(_head(problem.status_code, headers))
            return refused(problem.status_code, problem.body, headers)
        case APIConnectionError() if isinstance(problem.__cause__, ConnectError | ConnectTimeout | PoolTimeout):
            return ModelFailure("connect", f"the provider cannot be reached: {problem.__cause__}", bought="no")
        case APITimeoutError():
            return ModelFailure("timeout", "the provider did not answer in time.")
        case APIConnectionError():
            return _cut(problem.__cause__, None)
        case _:
            return ModelFailure("auth", str(problem), bought="no")  # its credentials cannot be loaded


def _cut(problem: BaseException | None, request_id: str | None) -> ModelFailure:
    from httpx2 import TimeoutException

    if isinstance(problem, TimeoutException):
        return ModelFailure("timeout", "the provider stopped sending.", request_id=request_id)
    reason = "" if problem is None else f": {type(problem).__name__} {problem}".rstrip()
    return ModelFailure("cut", f"the connection ended before the answer did{reason}.", request_id=request_id)
