"""Ids: made by the client, sorted by time, and derived where a repeat must be the same job."""

from __future__ import annotations

import random
import uuid

from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import Ports
from holdfast.kernel.ids import derived_id, is_id, new_id
from tests.support.stores import ManualClock


def ports(us: int = 1_800_000_000_123_456, seed: int = 1) -> Ports:
    return Ports(ManualClock(us), random.Random(seed))


def test_a_new_id_is_a_uuid_of_version_7_with_its_time() -> None:
    id = uuid.UUID(new_id(ports()))
    assert (id.version, id.variant) == (7, uuid.RFC_4122)
    assert id.int >> 80 == 1_800_000_000_123


@given(st.integers(min_value=0, max_value=2**48 * 1_000 - 1), st.integers())
def test_every_time_and_chance_gives_a_valid_id(us: int, seed: int) -> None:
    id = uuid.UUID(new_id(ports(us, seed)))
    assert (id.version, id.variant) == (7, uuid.RFC_4122)


def test_ids_sort_by_the_millisecond_they_were_made_in() -> None:
    made = [new_id(ports(us, seed=99 - us % 50)) for us in range(0, 50_000_000, 1_000_000)]
    assert made == sorted(made)


def test_ids_of_one_moment_differ() -> None:
    same = ports()
    assert len({new_id(same) for _ in range(1_000)}) == 1_000


def test_the_same_seed_gives_the_same_ids() -> None:
    assert new_id(ports(seed=5)) == new_id(ports(seed=5))


def test_a_derived_id_is_a_uuid_of_version_8_of_its_parts_alone() -> None:
    id = derived_id("0190", "fetch", 3)
    assert uuid.UUID(id).variant == uuid.RFC_4122
    assert uuid.UUID(id).version == 8
    assert id == derived_id("0190", "fetch", 3) == derived_id("0190", "fetch", "3")


def test_a_derived_id_never_changes_between_releases() -> None:
    """Else the children that an older release launched would be launched again."""
    assert derived_id("0190", "fetch", 3) == "5ea64550-fa76-8721-b4a6-7615bd5a02fa"


@given(st.lists(st.tuples(st.text("ab1", max_size=3), st.text("ab1", max_size=3)), unique=True, min_size=2))
def test_other_parts_are_another_id(parts: list[tuple[str, str]]) -> None:
    assert len({derived_id(*pair) for pair in parts}) == len(parts)


def test_ids_are_told_from_other_text() -> None:
    assert is_id(new_id(ports()))
    assert is_id(derived_id("x"))
    assert is_id(new_id(ports()).upper())
    for text in ("", "x", "0190", new_id(ports())[:-1], new_id(ports()).replace("-", ""), f"{{{new_id(ports())}}}"):
        assert not is_id(text)
