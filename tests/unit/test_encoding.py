"""The JSON codec: the same bytes everywhere, and a clear refusal of what one database could not hold."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadPayload
from holdfast.kernel import codec
from holdfast.kernel.codec import check_text, clip, decode, decode_foreign, digest, encode, is_wide

MEGABYTE = 1_000_000
# Text that both databases can hold: no NUL, no surrogates.
storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable,
    lambda inner: st.lists(inner) | st.dictionaries(storable, inner),
    max_leaves=10,
)


def encoded(value: object, cap: int = MEGABYTE) -> str:
    return encode(value, what="the payload", cap=cap)


def test_it_is_compact_sorted_and_not_escaped() -> None:
    assert encoded({"b": [1, 2.5, None], "a": {"z": True, "y": "Zoë 🙂"}}) == (
        '{"a":{"y":"Zoë 🙂","z":true},"b":[1,2.5,null]}'
    )


@given(values)
def test_what_is_stored_comes_back(value: object) -> None:
    assert decode(encoded(value)) == value


@given(values)
def test_the_text_is_what_the_standard_library_writes(value: object) -> None:
    assert encoded(value) == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@given(st.dictionaries(storable, st.integers()))
def test_equal_values_are_equal_bytes_whatever_their_order(value: dict[str, int]) -> None:
    assert encoded(dict(reversed(value.items()))) == encoded(value)


def test_nothing_stored_is_nothing() -> None:
    assert decode(None) is None
    assert decode("null") is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a\x00b", "the payload contains a NUL character, which PostgreSQL cannot store"),
        ({"key\x00": 1}, "contains a NUL character"),
        ("\\\x00", "contains a NUL character"),
        ("\ud800", "the payload contains a lone surrogate"),
        ({"\udfff": 1}, "contains a lone surrogate"),
        (math.nan, "the payload is not JSON"),
        ([math.inf], "is not JSON"),
        (b"bytes", "is not JSON: Object of type bytes"),
        (object(), "is not JSON: Object of type object"),
        ({1, 2}, "is not JSON: Object of type set"),
        (datetime(2026, 1, 1), "is not JSON: Object of type datetime"),
        (Path("/tmp"), "is not JSON"),
        ({(1, 2): 3}, "is not JSON: keys must be str"),
        ({1: 1, "a": 2}, "is not JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(value: object, message: str) -> None:
    with pytest.raises(BadPayload, match=message):
        encoded(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(BadPayload, match="is not JSON"):
        encoded(loop)


def test_a_value_nested_too_deep_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadPayload, match="is not JSON"):
        encoded(deep)


@pytest.mark.parametrize("text", ["\\u0000", "a\\\\u0000", "C:\\u0000\\x"])
def test_text_that_only_spells_the_escape_is_fine(text: str) -> None:
    assert decode(encoded(text)) == text


@given(st.text(st.sampled_from(["\\", "u", "0", "\x00", "a"]), max_size=12))
def test_only_a_real_nul_counts_as_one(text: str) -> None:
    if "\x00" in text:
        with pytest.raises(BadPayload, match="NUL"):
            encoded(text)
    else:
        assert decode(encoded(text)) == text


def test_the_cap_is_in_bytes_of_json() -> None:
    assert encoded("é" * 4, cap=10) == '"éééé"'
    with pytest.raises(BadPayload, match=r"is 12 bytes of JSON, over the cap of 10\. Store it elsewhere"):
        encoded("é" * 5, cap=10)


def test_a_digest_is_of_the_text() -> None:
    assert digest("{}") == digest(encoded({})) != digest("[]")
    assert len(digest("")) == 64


@pytest.mark.parametrize("name", ["mail", "a" * 512, "größe", "with space"])
def test_a_plain_name_is_fine(name: str) -> None:
    assert check_text(name, what="a queue name") == name


@pytest.mark.parametrize("name", ["", "a" * 513, "a\x00", "\ud800"])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(BadPayload, match="a queue name"):
        check_text(name, what="a queue name")


def test_short_text_is_not_clipped() -> None:
    assert clip("as it is", 8) == "as it is"


def test_long_text_is_clipped_at_a_character() -> None:
    assert clip("ééééé", 5) == "éé…"


def test_clipped_text_can_always_be_stored() -> None:
    assert clip("a\x00b\ud800c", 100) == "a\N{REPLACEMENT CHARACTER}b?c"


@given(st.text(st.characters()), st.integers(min_value=0, max_value=50))
def test_whatever_is_clipped_encodes_within_the_cap(text: str, cap: int) -> None:
    clipped = clip(text, cap)
    assert len(clipped.encode()) <= cap + len("…".encode())
    assert json.loads(encoded(clipped)) == clipped


@given(values, st.sampled_from([None, 2]))
def test_json_is_wide_when_it_has_more_values_than_are_read(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=indent is None)
    count = _values_in(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "MOST_VALUES", 1)
        assert is_wide(text) >= (count > 3), "each value has a sign before it, or is the first"
        patch.setattr(codec, "MOST_VALUES", 3 * count + 2)
        assert not is_wide(text), "a list and an object have a sign of their own"


def _values_in(value: object) -> int:
    """Keys too."""
    match value:
        case list():
            return 1 + sum(map(_values_in, value))
        case dict():
            return 1 + sum(1 + _values_in(each) for each in value.values())
        case _:
            return 1


@pytest.mark.parametrize(
    "text",
    [
        "[" + "1," * codec.MOST_VALUES + "1]",
        "[" + "[]," * codec.MOST_VALUES + "1]",
        "{" + '"k":1,' * codec.MOST_VALUES + '"k":1}',
        '["\\\\",' + '"\\"",' * codec.MOST_VALUES + "1]",
        "[" * (codec.MOST_VALUES + 1),
    ],
)
def test_wide_json_is_refused_before_it_is_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(BadPayload, match="a message has more than 50,000 values"):
        decode_foreign(text, what="a message")


@pytest.mark.parametrize("piece", ["a, b: [c] {d} ", "\\\\", '\\"', "\\u00e9,", '{\\"a\\": [1, 2]}, '])
def test_a_long_text_is_one_value(piece: str) -> None:
    text = f'{{"prompt": "{piece * 100_000}"}}'
    assert decode_foreign(text, what="a message") == json.loads(text)
