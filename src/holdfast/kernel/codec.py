"""One JSON codec for everything stored: compact, sorted, UTF-8, and the same bytes on both databases.

What one of the two databases cannot hold (NUL, lone surrogates, NaN) is refused on both.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from holdfast.errors import BadPayload, NotUnderstood, UsageError
from holdfast.text import without_middle

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
        raise BadPayload(f"{what} must be text; got {type(value).__name__}.")
    if not value or len(value) > cap:
        raise BadPayload(f"{what} must have 1 to {cap} characters; got {len(value)}.")
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


# Stored JSON, read so that releases may mix: every record that was written as JSON comes back through here.
#
# Fields that this release does not know are left out, and missing ones take their defaults. What is left must have
# the
# type that the record declares. `NotUnderstood` says that it has not: the reader leaves it to a newer release, and
# gives
# up nothing for good.


T = TypeVar("T")


def read(kind: type[T], stored: object, *, what: str) -> T:
    """The record of this kind, a dataclass or a named tuple, that was stored as `stored`. `what` names it in errors."""
    try:
        return cast(T, _record(kind, stored, ""))
    except _Misfit as misfit:
        raise NotUnderstood(what, str(misfit)) from None
    except (UsageError, TypeError, ValueError) as problem:  # the record's own checks
        raise NotUnderstood(what, str(problem).removesuffix(".")) from problem


class _Misfit(Exception):
    pass


@cache
def _fields(kind: type[Any]) -> Mapping[str, tuple[Any, bool]]:
    """The declared type of each field, and whether it may be missing."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        declared = [each for each in fields(kind) if each.init]
        optional = {each.name for each in declared if (each.default, each.default_factory) != (MISSING, MISSING)}
        return {each.name: (hints[each.name], each.name in optional) for each in declared}
    return {name: (hints[name], name in kind._field_defaults) for name in kind._fields}


def _record(kind: type[Any], stored: object, at: str) -> object:
    if not isinstance(stored, Mapping):
        raise _Misfit(f"{at.removesuffix('.') or 'it'} must be an object; got {_shown(stored)}")
    given = {}
    for name, (declared, optional) in _fields(cast(Hashable, kind)).items():
        if name in stored:
            given[name] = _value(declared, stored[name], f"{at}{name}")
        elif not optional:
            raise _Misfit(f"{at}{name} is missing")
    return kind(**given)


def _value(declared: Any, value: object, at: str) -> object:
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, at)
    if origin is Literal:
        if value in arguments:
            return value
        raise _Misfit(f"{at} is {_shown(value)}, which is none of {', '.join(map(str, arguments))}")
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _Misfit(f"{at} must be a list; got {_shown(value)}")
        return tuple(_value(arguments[0], each, f"{at}[{place}]") for place, each in enumerate(value))
    if hasattr(declared, "__supertype__"):  # a NewType
        return _value(declared.__supertype__, value, at)
    if is_dataclass(declared):
        return _record(cast(type[Any], declared), value, f"{at}.")
    expected = origin or declared
    if expected is timedelta or not isinstance(value, (int, float) if expected is float else expected):
        raise _Misfit(f"{at} must be {'null' if expected is type(None) else expected.__name__}; got {_shown(value)}")
    return value


def _one_of(declared: Sequence[Any], value: object, at: str) -> object:
    """What fits the first of these types that it fits; the complaint is about the first of them."""
    complaint = None
    for each in declared:
        try:
            return _value(each, value, at)
        except _Misfit as misfit:
            complaint = complaint or misfit
    assert complaint is not None
    raise complaint


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
