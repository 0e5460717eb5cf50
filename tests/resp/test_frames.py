"""Requests are cut out of any stream in the same way, and what exceeds a limit is refused before it is stored."""

from __future__ import annotations

import contextlib
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agw.link import request
from holdfast.resp.frames import AFTER_AUTH, BEFORE_AUTH, BadFrame, FrameLimits, Frames
from tests.resp.fuzz import Entry, corpus, mutated

REQUESTS = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), min_size=1, max_size=5)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(each % (len(data) + 1) for each in at)})
    return [data[a:b] for a, b in pairwise(places)]


def read(parts: list[bytes], limits: FrameLimits = AFTER_AUTH) -> tuple[list[list[bytes]], str]:
    """The requests in these parts, and why reading them stopped."""
    frames = Frames(limits)
    found = []
    for part in parts:
        frames.feed(part)
        try:
            while (each := frames.next()) is not None:
                found.append(each)
        except BadFrame as bad:
            return found, str(bad)
    return found, "" if frames.is_empty else "incomplete"


@pytest.mark.long
@given(REQUESTS, st.lists(st.integers(0, 10_000), max_size=8))
@settings(max_examples=200)
def test_a_stream_means_the_same_however_it_is_cut(requests: list[list[bytes]], at: list[int]) -> None:
    stream = b"".join(request(*each) for each in requests)
    assert read(cut(stream, at)) == (requests, "")


def test_agx_04_a_stream_cut_at_every_byte_means_the_same() -> None:
    stream = request("SET", "a", b"\r\n$3\r\n") + b"PING hello\r\n" + b"*0\r\n\r\n" + request("GET", b"")
    expected = [[b"SET", b"a", b"\r\n$3\r\n"], [b"PING", b"hello"], [b"GET", b""]]
    assert read([stream]) == (expected, "")
    for place in range(len(stream)):
        assert read([stream[:place], stream[place:]]) == (expected, "")
    assert read([stream[place : place + 1] for place in range(len(stream))]) == (expected, "")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"*-2\r\n", "invalid multibulk length"),
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*4294967295\r\n", "invalid multibulk length"),
        (b"*" + b"1" * 40, "invalid multibulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$+3\r\nabc\r\n", "invalid bulk length"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n$1\r\nabc\r\n", "does not end where its length says"),
        (b"x" * 100_000, "too big inline request"),
    ],
)
def test_agx_05_what_is_not_a_request_is_refused_at_once(data: bytes, problem: str) -> None:
    for parts in ([data], [data[at : at + 1] for at in range(len(data))]):
        found, why = read(parts)
        assert found == []
        assert problem in why


def test_a_request_before_auth_is_small() -> None:
    assert read([request(*["a"] * 11)], BEFORE_AUTH)[1].startswith("invalid multibulk length")
    assert read([b"*2\r\n$16385\r\n"], BEFORE_AUTH)[1] == "invalid bulk length"
    assert read([request(*["a" * 16_000] * 4)], BEFORE_AUTH)[1] == "Message too large"


def test_a_long_request_in_many_pieces_is_read_in_linear_time() -> None:
    """Each byte is looked at a few times at most: 1 MB in pieces of ten bytes, with the steps counted."""
    frames = Frames(AFTER_AUTH)
    found = None
    stream = request("SET", "a", b"\n" * 1_000_000)
    for at in range(0, len(stream), 10):
        frames.feed(stream[at : at + 10])
        found = frames.next()
        assert frames.buffered <= len(stream)
    assert found is not None
    assert frames.is_empty
    assert frames.buffered == 0


@pytest.mark.parametrize("entry", corpus(), ids=lambda entry: entry.name)
def test_the_corpus_is_read_as_it_says(entry: Entry) -> None:
    whole = read([entry.data])
    assert whole == read([entry.data[at : at + 1] for at in range(len(entry.data))])
    assert {"": "read", "incomplete": "incomplete"}.get(whole[1], "refused") == entry.kind


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(20))
def test_mutated_frames_neither_crash_nor_grow(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        data = mutated(chance)
        frames = Frames(BEFORE_AUTH)
        with contextlib.suppress(BadFrame):
            for at in range(0, len(data), 7):
                frames.feed(data[at : at + 7])
                while frames.next() is not None:
                    pass
                assert frames.buffered <= BEFORE_AUTH.request + 100
