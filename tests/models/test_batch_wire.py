"""A submit on its way out and results on their way in: byte by byte what they should be, however they are cut up."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import BatchItem, BatchLine, ModelFailure
from holdfast.models.batches import Upload, check_items, errored, line_bytes, line_of, read_lines, rfc3339, status_of
from tests.models.conftest import item, items

STATUS: dict[str, Any] = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "ended",
    "request_counts": {"processing": 0, "succeeded": 3, "errored": 1, "canceled": 0, "expired": 0, "postponed": 2},
    "created_at": "2026-11-15T10:00:00.000001Z",
    "expires_at": "2026-11-16T10:00:00Z",
    "ended_at": None,
}


async def pieces(upload: Upload) -> list[bytes]:
    return [piece async for piece in upload]


@given(st.lists(st.text(st.characters(codec=None)), min_size=1, max_size=8))
async def test_a_submit_is_json_of_the_size_that_it_says(texts: list[str]) -> None:
    asked = [BatchItem(f"r-{n}", json.dumps({"text": text}, ensure_ascii=False)) for n, text in enumerate(texts)]
    upload = Upload(asked)
    body = b"".join(await pieces(upload))
    assert len(body) == upload.size
    assert json.loads(body) == {
        "requests": [{"custom_id": f"r-{n}", "params": {"text": text}} for n, text in enumerate(texts)]
    }


async def test_a_submit_is_never_one_piece() -> None:
    upload = Upload([item(f"r-{n}", "x" * 10_000) for n in range(500)])
    sent = await pieces(upload)
    assert len(sent) > 10
    assert max(map(len, sent)) < 300_000
    assert len(json.loads(b"".join(sent))["requests"]) == 500


@pytest.mark.parametrize("count", [1, 500])
async def test_a_submit_is_handed_over_with_its_last_piece(count: int) -> None:
    upload = Upload([item(f"r-{n}", "x" * 10_000) for n in range(count)])
    seen: list[tuple[bytes, bool]] = [(piece, upload.handed_over) async for piece in upload]
    assert [handed_over for _, handed_over in seen] == [False] * (len(seen) - 1) + [True]
    assert b"".join(await pieces(upload)) == b"".join(piece for piece, _ in seen)  # a redirect sends it again


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([], "between 1 and 100,000 requests, not 0"),
        ([item("a")] * 100_001, "not 100,001"),
        ([item("a b")], "'a b' does not match"),
        ([item("")], "'' does not match"),
        ([item("x" * 65)], "does not match"),
        ([item('a","params":{}}')], "does not match"),
        ([item("ä")], "does not match"),
        ([item("a"), item("b"), item("a")], "'a' is given to two requests"),
    ],
    ids=lambda value: None if isinstance(value, list) else value,
)
def test_what_cannot_be_a_batch_is_refused(asked: list[BatchItem], words: str) -> None:
    with pytest.raises(ModelFailure, match=words) as caught:
        check_items(asked)
    assert (caught.value.kind, caught.value.bought) == ("bad_request", "no")


def test_a_batch_is_read() -> None:
    status = status_of(STATUS)
    assert (status.id, status.status, status.ended, status.size) == ("msgbatch_1", "ended", True, 6)
    assert (status.created_us, status.ended_us) == (1_794_736_800_000_001, None)
    assert (rfc3339(status.created_us), rfc3339(None)) == (STATUS["created_at"], None)
    assert status.expires_us == status.created_us - 1 + 24 * 3600 * 1_000_000
    assert status.counts["postponed"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"created_at": None},
        {"created_at": "soon"},
        {"request_counts": []},
        {"request_counts": {"x": "?"}},
    ],
)
def test_what_is_no_batch_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(ModelFailure, match="is not a batch") as caught:
        status_of(STATUS | change)
    assert (caught.value.kind, caught.value.bought) == ("malformed", "no")


SUCCEEDED = {"type": "succeeded", "message": {"id": "msg_1", "content": []}}
ERROR = {"type": "invalid_request_error", "message": "no"}


def test_every_type_of_line_is_read() -> None:
    assert line_of(line_bytes("a", SUCCEEDED)) == BatchLine("a", "succeeded", {"id": "msg_1", "content": []}, None)
    assert line_of(line_bytes("a", errored(ERROR))) == BatchLine("a", "errored", None, ERROR)
    assert line_of(line_bytes("a", {"type": "errored", "error": ERROR})) == BatchLine("a", "errored", None, ERROR)
    for type in ("canceled", "expired", "postponed"):
        assert line_of(line_bytes("a", {"type": type})) == BatchLine("a", type, None, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "has no custom_id"),
        (b'{"result": {"type": "expired"}}', "has no custom_id"),
        (b'{"custom_id": 7, "result": {"type": "expired"}}', "has no custom_id"),
        (b'{"custom_id": "a"}', "of a has no result"),
        (b'{"custom_id": "a", "result": {}}', "of a has no result"),
        (b'{"custom_id": "a", "result": {"type": "succeeded"}}', "of a has succeeded without a message"),
    ],
)
def test_what_is_no_line_is_malformed(line: bytes, words: str) -> None:
    with pytest.raises(ModelFailure, match=words) as caught:
        line_of(line)
    assert caught.value.kind == "malformed"


async def chunked(data: bytes, cuts: list[int]) -> AsyncIterator[bytes]:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(edges):
        yield data[begin:end]


@given(st.lists(st.text(max_size=5), max_size=6), st.lists(st.integers(0, 400), max_size=20), st.booleans())
async def test_lines_are_the_same_however_they_come(texts: list[str], cuts: list[int], newline: bool) -> None:
    lines = [line_bytes(f"r-{n}", {"type": "succeeded", "message": {"text": text}}) for n, text in enumerate(texts)]
    data = b"\r\n".join(lines) if newline else b"".join(lines).rstrip(b"\n")
    read = [line async for line in read_lines(chunked(data, cuts))]
    assert [(line.custom_id, (line.message or {})["text"]) for line in read] == [
        (f"r-{n}", text) for n, text in enumerate(texts)
    ]


async def test_half_a_line_at_the_end_is_a_cut() -> None:
    whole = line_bytes("a", SUCCEEDED)
    read = read_lines(chunked(whole + whole[:-5], []))
    assert (await anext(read)).custom_id == "a"
    with pytest.raises(ModelFailure, match="middle of a line") as caught:
        await anext(read)
    assert caught.value.kind == "cut"


async def test_a_long_line_in_many_chunks_costs_its_length() -> None:
    line = line_bytes("long", {"type": "succeeded", "message": {"text": "x" * 20_000_000}})
    data = line_bytes("first", {"type": "expired"}) + line + line_bytes("last", {"type": "expired"})
    read = read_lines(chunked(data, list(range(0, len(data), 1000))))  # twenty thousand chunks
    assert [(each.custom_id, len((each.message or {}).get("text", ""))) async for each in read] == [
        ("first", 0),
        ("long", 20_000_000),
        ("last", 0),
    ]


def test_the_examples_of_these_tests_are_batches() -> None:
    check_items(items(3))
