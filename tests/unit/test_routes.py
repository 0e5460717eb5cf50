"""Routes: what a job requires, as a number; and which workers can serve it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadPayload
from holdfast.kernel.routes import capability_of, route_for, serves
from holdfast.kernel.rows import Route

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=10)


def test_a_job_requires_its_kind_and_what_it_asks_for() -> None:
    route = route_for("mail", "send", ["tag:gpu=yes", "machine:m1"])
    assert route.queue == "mail"
    assert json.loads(route.capabilities) == ["job:send", "machine:m1", "tag:gpu=yes"]


def test_order_and_repetition_do_not_matter() -> None:
    assert route_for("q", "k", ["b", "a", "b", "job:k"]) == route_for("q", "k", ["a", "b"])


def test_a_route_never_changes_between_releases() -> None:
    """Else jobs that an older release enqueued would be found by nobody."""
    assert route_for("default", "work") == Route(7430023135483471130, "default", '["job:work"]')
    assert route_for("q", "k", ["b", "a"]) == Route(8644724206102223620, "q", '["a","b","job:k"]')


@given(names, names, st.sets(names, max_size=3))
def test_every_number_fits_both_databases(queue: str, kind: str, requires: set[str]) -> None:
    assert 0 <= route_for(queue, kind, requires).id < 2**63


@given(st.lists(st.tuples(names, names, st.frozensets(names, max_size=2)), unique=True, min_size=2, max_size=5))
def test_other_requirements_are_other_routes(asked: list[tuple[str, str, frozenset[str]]]) -> None:
    meant = {(queue, frozenset({capability_of(kind), *requires})) for queue, kind, requires in asked}
    assert len({route_for(*one).id for one in asked}) == len(meant)


@pytest.mark.parametrize(("queue", "requires"), [("", []), ("q", [""]), ("a\x00", []), ("q", ["\ud800"])])
def test_names_that_are_no_text_are_refused(queue: str, requires: list[str]) -> None:
    with pytest.raises(BadPayload):
        route_for(queue, "k", requires)


@pytest.mark.parametrize(
    ("queues", "capabilities", "served"),
    [
        (None, ["job:send", "tag:gpu=yes"], True),
        (["mail"], ["job:send", "tag:gpu=yes", "more"], True),
        (["bulk", "mail"], ["tag:gpu=yes", "job:send"], True),
        (["bulk"], ["job:send", "tag:gpu=yes"], False),
        ([], ["job:send", "tag:gpu=yes"], False),
        (None, ["job:send"], False),
        (None, ["tag:gpu=yes"], False),
        (None, [], False),
    ],
)
def test_a_worker_serves_a_route_when_it_has_queue_and_every_capability(
    queues: list[str] | None, capabilities: list[str], served: bool
) -> None:
    assert serves(route_for("mail", "send", ["tag:gpu=yes"]), queues, capabilities) is served
