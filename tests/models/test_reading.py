"""The two limits, on virtual time: pings are life, bytes that make no event are not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import ModelFailure
from holdfast.models.sse import Lines, Patience, read_events
from tests.support.virtual_time import VirtualLoop

T = TypeVar("T")
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def run(work: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop(Random(1))
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def sent(*pieces: tuple[float, bytes]) -> AsyncIterator[bytes]:
    for seconds, data in pieces:
        await asyncio.sleep(seconds)
        yield data


async def read(chunks: AsyncIterator[bytes], *, idle: float = 10, total: float = 1000) -> list[dict[str, Any]]:
    return [event async for event in read_events(chunks, Patience(idle, total))]


def failure(work: Coroutine[Any, Any, Any]) -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        run(work)
    return caught.value


def test_pings_keep_a_slow_answer_alive() -> None:
    assert len(run(read(sent(*[(9, PING)] * 20)))) == 20


def test_silence_ends_it() -> None:
    lost = failure(read(sent((1, PING), (11, PING))))
    assert (lost.kind, lost.bought, lost.transient) == ("timeout", "unknown", True)
    assert "nothing arrived for 10s" in str(lost)


def test_bytes_that_never_make_an_event_are_silence() -> None:
    drip = [(1.0, PING[at : at + 1]) for at in range(len(PING))]
    assert len(drip) > 10
    assert "nothing arrived" in str(failure(read(sent(*drip))))


def test_the_whole_answer_has_a_limit_too() -> None:
    assert "took longer than 100s" in str(failure(read(sent(*[(9, PING)] * 20), total=100)))


def test_the_time_a_reader_takes_does_not_count() -> None:
    async def slowly() -> int:
        events = 0
        async for _ in read_events(sent((1, PING), (1, PING), (1, PING)), Patience(10, 1000)):
            events += 1
            await asyncio.sleep(60)
        return events

    assert run(slowly()) == 3


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_found_wherever_the_bytes_are_cut(cuts: list[int], newline: bytes) -> None:
    data = (
        b'event: a\ndata: {"type": "a", "text": "\xc3\xa4\xe2\x80\xa8"}\n\n'
        b': a comment\n\nid: 1\ndata: {"type":\ndata: "b"}\n\n' + PING
    ).replace(b"\n", newline)
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    lines = Lines()
    events = [event for a, b in itertools.pairwise(places) for event in lines.feed(data[a:b])]
    assert events == [{"type": "a", "text": "ä\u2028"}, {"type": "b"}, {"type": "ping"}]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"no": "type"}', b'"text"', b"\xff"])
def test_data_that_is_no_event_is_malformed(data: bytes) -> None:
    with pytest.raises(ModelFailure) as caught:
        Lines().feed(b"data: " + data + b"\n\n")
    assert caught.value.kind == "malformed"
