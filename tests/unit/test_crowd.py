"""The crowd: whose look counts for whom, and until when."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.clock import Ports
from holdfast.kernel.claim import MOST_ROUTES, SharedLook, looked_note, read_note
from holdfast.kernel.database import merged
from holdfast.settings import Settings
from holdfast.workers.poll import Crowd

SECOND = 1_000_000
STORE = 1_800_000_000 * SECOND  # the store's time when ours is 0


class OurClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Member:
    """One of a crowd that looks every second, and has just looked."""

    def __init__(self, *, seed: int = 0, alone: bool = False, due: float | None = None, latest: float = 60.0) -> None:
        self.clock = OurClock()
        self.crowd = Crowd(Ports(self.clock, Random(seed)), Settings())
        self.look(alone=alone, due=due, latest=latest)

    def look(self, *, alone: bool = False, due: float | None = None, latest: float = 60.0) -> None:
        self.crowd.looked(self.clock.now, self.store_time(self.clock.now), speaking=False)
        self.crowd.rest(1.0, due=due, latest=latest, alone=alone)

    def hear(self, made_at: float, *, leased: bool = False, many: bool = False) -> bool:
        return self.crowd.heard([SharedLook(self.store_time(made_at), leased)], many=many)

    @property
    def next(self) -> float:
        """When it looks, by its own clock."""
        return self.clock.now + self.crowd.left

    @staticmethod
    def store_time(at: float) -> int:
        return STORE + round(at * SECOND)


@pytest.mark.parametrize("seed", range(20))
def test_who_hears_nothing_looks_within_its_pause(seed: int) -> None:
    assert 0.5 <= Member(seed=seed).next <= 1.0


@pytest.mark.parametrize("seed", range(20))
def test_anothers_look_counts_as_ones_own(seed: int) -> None:
    member = Member(seed=seed)
    for made_at in (0.4, 0.8, 1.2):
        member.clock.now = made_at
        assert member.hear(made_at)
        assert made_at + 0.5 <= member.next <= made_at + 1.0


@pytest.mark.parametrize("seed", range(20))
def test_a_look_counts_from_when_it_was_made_not_from_when_it_is_heard_of(seed: int) -> None:
    """Whoever made it may have been stopped in between, and who hears of it too."""
    member = Member(seed=seed)
    member.clock.now = 30.0
    member.hear(0.4)
    assert 0.9 <= member.next <= 1.4
    member.hear(29.9)
    assert 30.4 <= member.next <= 30.9


def test_an_older_look_than_is_known_changes_nothing() -> None:
    member = Member()
    member.clock.now = 0.5
    member.hear(0.45)
    expected = member.next
    member.hear(0.4)
    member.hear(-3.0)
    assert member.next == expected


def test_who_is_alone_is_not_put_off() -> None:
    member = Member(alone=True)
    assert member.next == 1.0
    member.clock.now = 0.9
    assert member.hear(0.9)
    assert member.next == 1.0


def test_what_is_due_is_looked_at_by_whoever_looked_last() -> None:
    member = Member(due=0.2)
    assert member.next == 0.2
    member.clock.now = 0.1
    member.hear(-0.001)
    assert member.next == 0.2, "the other looked before"
    member.hear(0.001)
    assert member.next > 0.2, "the other has seen it too"


def test_what_is_due_after_the_next_look_is_left_to_that() -> None:
    assert 0.5 <= Member(due=5.0).next <= 1.0


def test_nobody_is_put_off_for_ever() -> None:
    member = Member(latest=2.5)
    for step in range(1, 30):
        member.clock.now = step / 10
        member.hear(member.clock.now)
        assert member.next <= 2.5


def test_while_jobs_run_the_next_look_is_sooner() -> None:
    member = Member()
    member.clock.now = 0.3
    member.hear(0.3, leased=True)
    assert 0.55 <= member.next <= 0.8


def test_each_looks_for_itself_when_there_was_too_much_to_tell_and_no_sooner_than_it_would() -> None:
    member = Member(due=0.9)
    expected = member.next
    member.clock.now = 0.4
    assert member.hear(0.4, many=True)
    assert member.next == expected
    assert not member.crowd.may_speak(0.8, hinted=False), "everybody was told that there is too much"


@pytest.mark.parametrize("seed", range(20))
def test_while_jobs_run_and_there_is_too_much_to_tell_each_looks_once_in_its_own_pause(seed: int) -> None:
    """Whoever told has looked after the dead; only what can be claimed is left to see."""
    member = Member(seed=seed)
    member.crowd.rest(0.5, due=None, latest=60.0, alone=False)
    assert 0.25 <= member.next <= 0.5
    for made_at in (0.2, 0.4):
        member.clock.now = made_at
        assert member.hear(made_at, leased=True, many=True)
        assert min(made_at + 0.25, 0.5) <= member.next <= made_at + 0.5
    for made_at in (0.6, 0.8, 0.9):
        member.clock.now = made_at
        assert member.hear(made_at, leased=True, many=True)
        assert member.next <= 1.0


def test_somebody_tells_where_hints_never_end() -> None:
    """Each looks by itself all the time, and nobody would look after the dead."""
    member = Member()
    for step in range(1, 10):
        member.clock.now = step / 10
        assert not member.crowd.may_speak(member.clock.now, hinted=True)
        member.look()
    assert member.crowd.may_speak(1.5, hinted=True)
    assert 0 < sum(Member(seed=seed).crowd.may_speak(1.1, hinted=True) for seed in range(100)) < 40, "not all at once"
    member.clock.now = 1.5
    member.crowd.looked(1.5, member.store_time(1.5), speaking=True)
    assert not member.crowd.may_speak(1.9, hinted=False)


def test_a_leap_of_the_stores_clock_makes_everybody_look() -> None:
    member = Member()
    member.clock.now = 0.4
    assert not member.hear(3_600.0)
    assert member.next <= 1.0
    behind = Member()
    behind.look()
    behind.clock.now = 0.9
    assert behind.hear(0.8 - 3_600)
    assert behind.next <= 1.0


def test_whoever_heard_of_a_look_does_not_tell_of_one_of_its_own() -> None:
    member = Member(alone=True)
    assert not member.crowd.may_speak(0.4, hinted=False)
    assert member.crowd.may_speak(0.6, hinted=False)
    member.clock.now = 0.5
    member.hear(0.5)
    assert not member.crowd.may_speak(0.9, hinted=False)
    assert member.crowd.may_speak(1.1, hinted=False)


def test_who_comes_does_not_speak_at_once() -> None:
    assert not Crowd(Ports(OurClock(), Random(0)), Settings()).may_speak(10.0, hinted=False)


def test_a_note_says_who_looked_when_and_what_was_found() -> None:
    subject, _, names = looked_note(SharedLook(123, True), [7, 5]).partition(" ")
    assert (subject, read_note(names)) == ("looked", ([SharedLook(123, True)], [7, 5], False))
    assert read_note(looked_note(SharedLook(5, False), None).partition(" ")[2]) == ([SharedLook(5, False)], [], True)
    assert read_note(looked_note(SharedLook(5, False), []).partition(" ")[2]) == ([SharedLook(5, False)], [], False)


def test_notes_of_several_looks_are_told_together() -> None:
    (note,) = merged([looked_note(SharedLook(10, False), [1]), looked_note(SharedLook(12, True), [2]), "route 3"])[:1]
    looks, routes, many = read_note(note.partition(" ")[2])
    assert (sorted(looks), sorted(routes), many) == ([SharedLook(10, False), SharedLook(12, True)], [1, 2], False)


@pytest.mark.parametrize("names", ["", ":", "x:1", "many:", "5:1:2", "-3", "é:0"])
def test_what_is_not_understood_is_left_out(names: str) -> None:
    looks, routes, _ = read_note(names)
    assert (len(looks), routes) == (1 if names == "5:1:2" else 0, [])


def test_as_many_routes_as_are_told_fit_into_one_note_of_postgresql() -> None:
    longest = range(2**63 - MOST_ROUTES, 2**63)
    assert len(merged([looked_note(SharedLook(STORE, leased=True), longest)])) == 1
