"""Many hints in few notes, and none that is too large to be sent."""

from __future__ import annotations

from holdfast.kernel.database import LARGEST, merged, route_note


def test_names_of_one_subject_go_in_one_note() -> None:
    notes = ["route 3", "cancel 7", "route 1,3", "route 2", "cancel 7", "look"]
    assert merged(notes) == ["route 1,2,3", "cancel 7", "look"]
    assert merged([]) == []


def test_whoever_names_everything_names_nobody_else() -> None:
    assert merged(["run a,b", "run *"]) == ["run *"]


def test_a_note_that_is_too_large_is_cut() -> None:
    routes = [2**62 + number for number in range(1_000)]
    notes = merged([route_note(routes)])
    assert 2 < len(notes) < 4
    assert all(len(note.encode()) <= LARGEST for note in notes)
    assert [int(name) for note in notes for name in note.removeprefix("route ").split(",")] == routes


def test_a_name_that_is_too_large_makes_everybody_look() -> None:
    assert merged(["run " + "ä" * LARGEST, "run b"], 100) == ["run b", "look"]
    assert merged(["x" * 101], 100) == ["look"]


def test_no_routes_are_no_note() -> None:
    assert not route_note([])
    assert route_note([2, 1, 2]) == "route 1,2"
