"""`OpenAICompatible`: a provider, by its base URL and the variable that holds its key; and a model of it.

The stream is read as bytes, within our own limits. Retries are the runtime's.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.distribution import how_to_install
from holdfast.errors import MissingExtra, UsageError
from holdfast.models.chat_completions.events import ChunkFold
from holdfast.models.chat_completions.request import chat_body
from holdfast.models.failures import ModelFailure, refused, retry_after
from holdfast.models.places import place_of
from holdfast.models.protocol import Answered, Request, Wire
from holdfast.models.sse import Patience, read_data

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

_OPENAI = "https://api.openai.com/v1"
_DONE = b"[DONE]"


class OpenAICompatible:
    """`hf.provider("openai", OpenAICompatible(key_env="OPENAI_API_KEY"))`.

    `base_url` is where `/chat/completions` is below, for any server that speaks the same. `key_env` names the
    environment variable that has the key; None: the server asks for none.
    """

    def __init__(
        self, *, key_env: str | None = "OPENAI_API_KEY", base_url: str = _OPENAI, connect: float = 10.0
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"base_url must begin with http:// or https://, not {base_url[:80]!r}.")
        self._key_env = key_env
        self._place = place_of(base_url)
        self._connect = connect

    def open(self, model: str) -> ChatModel:
        if not model.strip():
            raise UsageError('the name of the model is missing: write "openai:gpt-5".')
        place = self._place
        headers = {**place.headers, **({"authorization": f"Bearer {self._key}"} if self._key else {})}
        return ChatModel(model, place.url, headers, dict(place.parameters), self._connect)

    def lack(self) -> str | None:
        if self._key_env is not None and not self._key:
            return f"there is no key: {self._key_env} is not set"
        if importlib.util.find_spec("httpx2") is None:
            return f"its HTTP client is not installed: {how_to_install('openai')}"
        return None

    def credential(self) -> str:
        digest = hashlib.sha256((self._key + self._place.secret).encode()).hexdigest()[:8]
        return f"{self._place.url}#{digest}"

    @property
    def _key(self) -> str:
        return os.environ.get(self._key_env, "") if self._key_env is not None else ""


class ChatModel:
    """One model of a chat completions API."""

    def __init__(
        self, name: str, url: str, headers: dict[str, str], query: dict[str, str], connect: float = 10.0
    ) -> None:
        self._name = name
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers, self._query, self._connect = headers, query, connect
        self._made: AsyncClient | None = None

    async def warm(self) -> None:
        self._client()

    async def stream(self, request: Request, answered: Callable[[Answered], None]) -> AsyncGenerator[Wire, None]:
        patience, fold = Patience(request.idle, request.total), ChunkFold(self._name)
        from httpx2 import HTTPError

        async with self._opened(request, patience, answered) as response:
            request_id = response.headers.get("x-request-id")
            try:
                async with aclosing(_bytes(response)) as chunks, aclosing(read_data(chunks, patience)) as texts:
                    async for text in texts:
                        if text.strip() == _DONE:
                            break
                        for event in fold.feed(_chunk(text, response)):
                            yield event
            except ModelFailure as failure:
                failure.request_id = failure.request_id or request_id
                raise
            except HTTPError as problem:
                raise _cut(request_id, problem) from problem
        if not fold.complete:
            raise _cut(request_id)
        for event in fold.end():
            yield event

    @asynccontextmanager
    async def _opened(
        self, request: Request, patience: Patience, answered: Callable[[Answered], None]
    ) -> AsyncIterator[Response]:
        body = chat_body(request, self._name)
        client = self._client()
        from httpx2 import ConnectError, ConnectTimeout, HTTPError, PoolTimeout

        named = {"x-holdfast-call": request.call} if request.call else {}
        asked = client.build_request("POST", self._url, json=body, headers=named, params=self._query or None)
        try:
            async with asyncio.timeout_at(patience.next()):
                response = await client.send(asked, stream=True)
        except TimeoutError:
            raise patience.lost() from None
        except (ConnectError, ConnectTimeout, PoolTimeout) as problem:
            raise ModelFailure("connect", f"the provider cannot be reached: {problem}", bought="no") from problem
        except HTTPError as problem:
            raise _cut(None, problem) from problem
        try:
            headers = dict(response.headers)
            told = Answered(
                status=response.status_code,
                request_id=headers.get("x-request-id"),
                organization=headers.get("openai-organization"),
                retry_after=retry_after(headers),
            )
            answered(told)
            if response.status_code >= 400:
                raise await _refusal(response)
            yield response
        finally:
            await response.aclose()

    async def count_tokens(self, request: Request) -> int:
        """Such an API does not count, so the caller estimates."""
        raise ModelFailure("not_found", f"the provider of {self._name} does not count tokens.", bought="no")

    async def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()

    def _client(self) -> AsyncClient:
        if self._made is None:
            try:
                from httpx2 import AsyncClient, Timeout
            except ImportError as problem:
                raise MissingExtra("openai", "a chat completions API") from problem
            self._made = AsyncClient(headers=self._headers, timeout=Timeout(None, connect=self._connect))
        return self._made


def _chunk(text: bytes, response: Response) -> Wire:
    try:
        chunk = json.loads(text.decode())
    except (ValueError, RecursionError) as problem:
        raise ModelFailure("malformed", f"a chunk is not JSON: {text[:200]!r}.") from problem
    if not isinstance(chunk, dict):
        raise ModelFailure("malformed", f"a chunk is not an object: {text[:200]!r}.")
    if chunk.get("error"):
        raise refused(response.status_code, chunk, dict(response.headers), streaming=True)
    return chunk


async def _refusal(response: Response) -> ModelFailure:
    text = (await response.aread()).decode(errors="replace")
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    failure = refused(response.status_code, body, dict(response.headers))
    failure.request_id = failure.request_id or response.headers.get("x-request-id")
    return failure


async def _bytes(response: Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


def _cut(request_id: str | None, problem: BaseException | None = None) -> ModelFailure:
    reason = "" if problem is None else f": {type(problem).__name__} {problem}".rstrip()
    return ModelFailure("cut", f"the connection ended before the answer did{reason}.", request_id=request_id)
