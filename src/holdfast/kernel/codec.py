"""One JSON codec for everything stored: compact, sorted, UTF-8, and the same bytes on both databases.

What one of the two databases cannot hold (NUL, lone surrogates, NaN) is refused on both.
"""

from __future__ import annotations

import hashlib
import json
import re
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any

from holdfast.errors import BadPayload
from holdfast.tracebacks import without_middle

_LONGEST_KEY = 512  # bytes
MOST_VALUES = 50_000  # of JSON that a client sends: reading more holds an event loop for a tenth of a second
_BETWEEN = b",:[{"  # before each value stands one of these, or it is the first
# JSON writes NUL as \u0000; an even number of backslashes before it would make it literal text.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
# What `_encoder` creates for every call; it keeps no track of where it has been, so it can be kept.
_compiled = c_make_encoder and c_make_encoder(
    None, _encoder.default, encode_basestring, None, ":", ",", True, False, False
)


def encode(value: object, *, what: str, cap: int) -> str:
    """The stored text of `value`, or `BadPayload` that says what about it cannot be stored."""
    if value is None:
        return "null"
    try:
        text = _text(value)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadPayload(f"{what} contains a lone surrogate, which is not text; decode it properly first.") from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadPayload(f"{what} is not JSON: {problem}. Convert it to plain JSON values.") from None
    if "\\u0000" in text and _NUL.search(text):
        raise BadPayload(f"{what} contains a NUL character, which PostgreSQL cannot store; remove it.")
    if size > cap:
        raise BadPayload(
            f"{what} is {size:,} bytes of JSON, over the cap of {cap:,}. "
            f"Store it elsewhere and pass a reference, or raise the cap."
        )
    return text


def _text(value: object) -> str:
    if _compiled is not None:
        try:
            return "".join(_compiled(value, 0))
        except RecursionError:
            pass  # a circle: the other one says so
    return _encoder.encode(value)


def decode(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def is_wide(text: str | bytes) -> bool:
    """Whether JSON has more than `MOST_VALUES` values, found out before it is parsed.

    Only functions in C look at the text, so the answer costs less than the parser does, whatever the text is.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(data) <= MOST_VALUES:
        return False
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # each quote that is left begins or ends a text
    parts = plain.split(b'"', 2 * MOST_VALUES + 1)
    outside = b"".join(parts[::2])
    return len(parts) > 2 * MOST_VALUES or len(outside) - len(outside.translate(None, _BETWEEN)) >= MOST_VALUES


def loads_utf8(text: str | bytes, **options: Any) -> Any:
    """JSON in UTF-8. `json.loads` reads bytes as UTF-16 and UTF-32 too, where nobody has counted and looked before.

    ValueError where it is not JSON in UTF-8.
    """
    return json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"), **options)


def is_utf8(data: bytes) -> bool:
    """Whether every reader of JSON takes these bytes for UTF-8. A NUL is in no JSON, and makes them guess others."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\x00" not in data


def decode_foreign(text: str | bytes, *, what: str) -> Any:
    """The JSON that a client sent; `BadPayload` where it is none, or more than is read at once."""
    if is_wide(text):
        raise BadPayload(f"{what} has more than {MOST_VALUES:,} values. Send less at once.")
    try:
        return loads_utf8(text)
    except (ValueError, RecursionError) as problem:
        raise BadPayload(f"{what} is not JSON: {problem}.") from None


def check_text(value: object, *, what: str, cap: int = 512) -> str:
    """Names and keys that become columns: no NUL, no lone surrogate, not endless."""
    if not isinstance(value, str):
        raise BadPayload(f"{what} must be text, not {type(value).__name__}.")
    if not value or len(value) > cap:
        raise BadPayload(f"{what} must have 1 to {cap} characters, not {len(value)}.")
    if "\x00" in value or not _encodable(value):
        raise BadPayload(f"{what} contains a NUL character or a lone surrogate.")
    return value


def check_tenant(tenant: object) -> str:
    """A tenant's name; "" is nobody's."""
    return "" if tenant == "" else check_text(tenant, what="a tenant")


def stored_key(key: object) -> str:
    """An idempotency key as it is stored: a long one, which no index would hold, by its digest."""
    if isinstance(key, str):
        data = key.encode(errors="surrogatepass")
        if len(data) > _LONGEST_KEY:
            return f"sha256:{hashlib.sha256(data).hexdigest()}"
    return check_text(key, what="an idempotency key")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def clip(text: str, cap: int) -> str:
    """Text made safe for both databases and cut to `cap` bytes; for errors, which must always be storable."""
    data = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")
    if len(data) <= cap:
        return data.decode()
    return data[:cap].decode(errors="ignore") + "…"


def clip_middle(text: str, cap: int) -> str:
    """`clip` for a traceback: what is too long goes from the middle, because its end says what happened."""
    return without_middle(clip(text, len(text) * 4), cap)


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
