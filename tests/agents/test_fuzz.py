"""Random programs of agents keep every promise on both databases, and a bug that is planted is noticed.

A few seeds are played in every run of the tests, HOLDFAST_FUZZ_SEEDS of them by the long form; HOLDFAST_FUZZ_SEED plays
one of them again. What a program is, and what is judged, is in `tests/agents/fuzz`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.agents.events.log import Journal, Piece
from holdfast.agents.messages import add_message
from holdfast.agents.people import inquiries
from holdfast.agents.people.inquiries import DefaultRuling, default_of
from holdfast.agents.people.records import InquiryRow
from holdfast.agents.rows import LoadedRun, Steer
from holdfast.agents.runs import end, loop, turn
from holdfast.agents.runs.history import BuiltRequest
from holdfast.agents.statements import InboxSql
from holdfast.agents.states import InquiryState
from holdfast.kernel.database import Transaction
from holdfast.kernel.rows import Lease, Resolution
from holdfast.models import Reply
from holdfast.testing.databases import Databases, SqliteFiles
from tests.agents.fuzz.play import Failed, play
from tests.agents.fuzz.program import POLICIES, Send, draw

ONE = os.environ.get("HOLDFAST_FUZZ_SEED")
SHORT = [int(ONE)] if ONE else [5, 22]
LONG = int(os.environ.get("HOLDFAST_FUZZ_SEEDS", "10"))
MOST = 8  # programs until a planted bug must have been noticed

# A worker that was killed in the middle of a call over HTTP leaves coroutines that complain when they are collected.
pytestmark = [
    pytest.mark.usefixtures("key"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the simulator has a key."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")


@pytest.mark.sample(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SHORT)
async def test_short_programs_keep_every_promise(seed: int, databases: Databases, dialect: str) -> None:
    await play(seed, databases, size=14 if ONE else 6, kind=dialect)


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_many_programs_keep_every_promise_and_see_what_there_is_to_see(
    databases: Databases, dialect: str
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 100 + LONG):
        seen += (await play(seed, databases, kind=dialect)).seen
    print(sorted(seen.items()))
    if LONG >= 10:
        assert seen.keys() >= EVERYTHING, f"blind spots: {sorted(EVERYTHING - seen.keys())}"


EVERYTHING = {
    "a worker killed",
    "a turn asked again",
    "a turn that failed",
    "a model given up",
    "a message steered",
    "a history compacted",
    "a run interrupted",
    "an answer from a batch",
    "a fork",
    "a nested run",
    "a call approved",
    "a call denied",
    "a call reviewed",
    "a call approved with other arguments",
    "an inquiry expired",
    "run answered",
    "run truncated",
    "run refused",
    "run limited",
    "run failed",
    "run cancelled",
}


def test_the_program_of_a_seed_is_always_the_same_and_none_is_like_another() -> None:
    programs = [draw(seed) for seed in range(20)]
    assert programs == [draw(seed) for seed in range(20)]
    assert len({str(program) for program in programs}) == 20
    sends = [act for program in programs for act in program.acts if isinstance(act, Send)]
    assert {send.during for send in sends} == set(POLICIES)


def _forget_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several calls, the last one's result is not stored."""

    async def forgetful(tx: Transaction, run: Any, kind: Any, turn: int, blocks: Sequence[dict[str, Any]]) -> Any:
        return await add_message(tx, run, kind, turn, blocks[:-1] if kind == "results" and len(blocks) > 1 else blocks)

    monkeypatch.setattr(end, "add_message", forgetful)


def _buy_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is asked for a second time, and the first is thrown away."""
    called = loop._Turn._call

    async def wasteful(self: Any, model: Any, asked: BuiltRequest) -> Reply:
        async for _ in model.stream(replace(asked.request), lambda _: None):
            pass
        return await called(self, model, asked)

    monkeypatch.setattr(loop._Turn, "_call", wasteful)


def _lose_steers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that joins a run is taken, and never said."""

    async def careless(tx: Transaction, run: LoadedRun, number: int, steers: Sequence[Steer]) -> None:
        if steers:
            await tx.run(InboxSql.take_steers, ids=[steer.id for steer in steers], turn=number)

    monkeypatch.setattr(turn, "_take_steers", careless)


def _lose_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model says first in each block is not shown."""
    put = Journal.put

    def mumbling(self: Journal, lease: Lease, run: str, piece: Piece) -> None:
        if piece.type != "text_delta" or piece.offset:
            put(self, lease, run, piece)

    monkeypatch.setattr(Journal, "put", mumbling)


def _forget_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person changed is kept, but the call runs as the model asked for it."""

    def unchanged(*about: Any, payload: str | None = None, **more: Any) -> Resolution:
        return Resolution(*about, **more)

    monkeypatch.setattr(inquiries, "Resolution", unchanged)


def _run_what_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody decides in time, that is taken for an approval."""

    def lenient(row: InquiryRow) -> DefaultRuling:
        return default_of(row)._replace(verdict=InquiryState.APPROVED)

    monkeypatch.setattr(inquiries, "default_of", lenient)


async def play_several(count: int) -> None:
    """The order in which two workers come to their jobs is chance: what one program misses the next one meets."""
    for seed in range(1, 1 + count):
        await play(seed, SqliteFiles(), size=6, kind="sqlite")


@pytest.mark.sample(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "noticed"),
    [
        (_forget_a_result, "each use has its result|no request is refused for its form"),
        (_buy_twice, "nothing recorded is bought twice"),
        (_lose_steers, "no message is lost|no request is refused for its form"),
        (_lose_words, "what is shown is what was said"),
        (_forget_changes, "what runs is what was approved"),
        (
            _run_what_expired,
            "nothing runs that a person|an expired approval never runs|once means at most once|a review shows what may",
        ),
    ],
    ids=[
        *("a result forgotten", "a turn bought twice", "a steer lost", "words lost"),
        *("changed arguments forgotten", "an expired approval run"),
    ],
)
async def test_a_planted_bug_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Failed, match=noticed) as caught:
        await play_several(MOST)
    assert "HOLDFAST_FUZZ_SEED=" in str(caught.value)
