"""The faults that a rule makes of a batch: each as it is declared, and as the model tells of it."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import Any

import pytest

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models import BatchLine, ModelFailure, anthropic
from holdfast.models.simulator import read_rules
from holdfast.testing.clock import LabClock
from tests.models.conftest import Conversation, Converse, items, results, submit, types

MADE = {"path": "/v1/messages/batches", "method": "POST"}
READ = {"path": "/v1/messages/batches/*/results"}
ALL = [f"r-{n}" for n in range(1, 7)]


async def read(talk: Conversation, id: str) -> tuple[list[str], str | None]:
    """The custom ids that come, and what the download fails with."""
    seen: list[str] = []
    try:
        async with aclosing(talk.model.batch_results(id)) as lines:
            async for line in lines:
                seen.append(line.custom_id)
    except ModelFailure as failure:
        return seen, failure.kind if failure.bought == "no" else f"{failure.kind}, and bought"
    return seen, None


@pytest.mark.parametrize(
    ("do", "type", "hit"),
    [
        ({"expire": {"every": 3}}, "expired", ["r-3", "r-6"]),
        ({"cancel": {"every": 2}}, "canceled", ["r-2", "r-4", "r-6"]),
        ({"error": {"every": 4}}, "errored", ["r-4"]),
        ({"expire": True}, "expired", ALL),
        ({"expire": {"share": 0}}, "expired", []),
    ],
)
async def test_requests_fail_by_count(converse: Converse, do: dict[str, Any], type: str, hit: list[str]) -> None:
    talk = await converse({"match": MADE, "do": do})
    made = await submit(talk.model, *items(6))
    status = await talk.model.get_batch(made.id)
    assert (status.counts[type], status.counts["succeeded"]) == (len(hit), 6 - len(hit))
    found = await types(talk.model, made.id)
    assert [id for id, each in found.items() if each == type] == hit
    billed = [line["call"] for line in talk.provider.lines if line["event"] == "billed"]
    assert billed == [id for id in ALL if id not in hit]


async def test_requests_are_counted_over_all_batches(converse: Converse) -> None:
    talk = await converse({"match": MADE, "do": {"expire": {"every": 3}}})
    ids = [(await submit(talk.model, *items(2))).id for _ in range(3)]
    assert [list((await types(talk.model, id)).values()) for id in ids] == [
        ["succeeded", "succeeded"],
        ["expired", "succeeded"],
        ["succeeded", "expired"],
    ]


async def test_a_share_follows_the_seed(converse: Converse) -> None:
    async def drawn(seed: int) -> list[str]:
        talk = await converse({"match": MADE, "do": {"expire": {"share": 0.5}, "error": {"share": 0.2}}}, seed=seed)
        made = await submit(talk.model, *items(60))
        return list((await types(talk.model, made.id)).values())

    first, again, other = [await drawn(seed) for seed in (1, 1, 2)]
    assert first == again != other
    assert all(5 < Counter(first)[type] < 45 for type in ("succeeded", "expired", "errored"))


async def test_an_error_says_what_the_rule_says(converse: Converse) -> None:
    error = {"every": 2, "type": "overloaded_error", "message": "busy"}
    talk = await converse({"match": MADE, "do": {"error": error}})
    made = await submit(talk.model, *items(2))
    assert (await results(talk.model, made.id))[1] == BatchLine(
        "r-2", "errored", None, {"type": "overloaded_error", "message": "busy"}
    )


@pytest.mark.parametrize(
    ("do", "seen", "kind"),
    [
        ({"duplicate": {"every": 3}}, ["r-1", "r-2", "r-3", "r-3", "r-4", "r-5", "r-6", "r-6"], None),
        ({"missing": {"every": 2}}, ["r-1", "r-3", "r-5"], None),
        ({"missing": True}, [], None),
        ({"gone": True}, [], "not_found"),
        ({"cut": {"headers": True}}, [], "cut"),
        ({"cut": {"lines": 0}}, [], "cut"),
        ({"cut": {"lines": 2}}, ["r-1", "r-2"], "cut"),
        ({"cut": {"lines": 6}}, ALL, "cut"),  # all there, but who could know
        ({"cut": {"bytes": 700}}, ["r-1"], "cut"),
        ({"malformed": {"after": 2}}, ["r-1", "r-2", "", "r-3", "r-4", "r-5", "r-6"], None),
        ({"malformed": {"after": 6}}, [*ALL, ""], None),
        ({"status": 500}, [], "server"),
        ({"drip": {"bytes": 50, "seconds": 0}}, ALL, None),
    ],
)
async def test_a_download_is_as_bad_as_its_rule(
    converse: Converse, do: dict[str, Any], seen: list[str], kind: str | None
) -> None:
    talk = await converse({"match": {**READ, "nth": 1}, "do": do})
    made = await submit(talk.model, *items(6))
    assert await read(talk, made.id) == (seen, kind)
    assert await read(talk, made.id) == (ALL, None)  # the next one is well


async def test_a_fault_of_every_download_is_said_where_the_batch_is_made(converse: Converse) -> None:
    talk = await converse({"match": {**MADE, "nth": 1}, "do": {"missing": {"every": 2}}})
    bad, good = [(await submit(talk.model, *items(2))).id for _ in range(2)]
    for _ in range(2):
        assert await read(talk, bad) == (["r-1"], None)
    assert await read(talk, good) == (["r-1", "r-2"], None)
    assert (await talk.model.get_batch(bad)).counts["succeeded"] == 2  # the provider does not know what it leaves out


async def test_lines_come_in_another_order(converse: Converse) -> None:
    talk = await converse({"match": READ, "do": {"reorder": True}})
    made = await submit(talk.model, *items(20))
    seen, _ = await read(talk, made.id)
    wanted = [f"r-{n}" for n in range(1, 21)]
    assert seen != wanted
    assert sorted(seen) == sorted(wanted)
    assert await read(talk, made.id) == (seen, None)


async def test_a_line_may_have_twenty_megabytes(converse: Converse) -> None:
    talk = await converse({"match": READ, "do": {"pad": {"every": 2, "bytes": 20_000_000}}})
    made = await submit(talk.model, *items(3))
    assert [(line.custom_id, line.type) for line in await results(talk.model, made.id)] == [
        ("r-1", "succeeded"),
        ("r-2", "succeeded"),
        ("r-3", "succeeded"),
    ]


async def test_silence_ends_a_download(converse: Converse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anthropic, "_IDLE", 0.3)
    talk = await converse(
        {"match": {**READ, "nth": 1}, "do": {"stall": {"after": 2}}},
        {"match": READ, "do": {"slow_headers": None}},
    )
    made = await submit(talk.model, *items(3))
    seen, kind = await read(talk, made.id)
    assert (seen, kind) == (ALL[: len(seen)], "timeout")
    assert len(seen) <= 2
    assert await read(talk, made.id) == ([], "timeout")


async def test_one_batch_may_take_longer_than_others(converse: Converse) -> None:
    clock = LabClock()
    slow = {"match": {**MADE, "nth": 1}, "do": {"slow_batch": 600}}
    talk = await converse(slow, batch_seconds=60, ports=Ports(clock=clock))
    ids = [(await submit(talk.model, *items(1))).id for _ in range(2)]
    await clock.advance("2m")
    assert [(await talk.model.get_batch(id)).ended for id in ids] == [False, True]
    await clock.advance("10m")
    assert (await talk.model.get_batch(ids[0])).ended


async def test_a_batch_whose_answer_was_lost_is_found_by_its_results(converse: Converse) -> None:
    talk = await converse({"match": {**MADE, "nth": 1}, "do": {"lost_answer": True}})
    with pytest.raises(ModelFailure) as caught:
        await submit(talk.model, *items(2))
    assert caught.value.bought == "unknown"
    (found,) = await talk.model.list_batches(0)
    assert found.size == 2
    assert await read(talk, found.id) == (["r-1", "r-2"], None)
    assert sum(line["event"] == "billed" for line in talk.provider.lines) == 2


async def test_a_rule_is_for_a_path_and_a_method(converse: Converse) -> None:
    do = {"status": 500}
    talk = await converse({"match": {"path": "/v1/messages/batches/*"}, "do": do})
    made = await submit(talk.model, *items(1))
    assert await read(talk, made.id) == (["r-1"], None)
    with pytest.raises(ModelFailure, match="status 500"):
        await talk.model.get_batch(made.id)
    lists = await converse({"match": {"path": "/v1/messages/batches", "method": "GET"}, "do": do})
    await submit(lists.model, *items(1))
    with pytest.raises(ModelFailure, match="status 500"):
        await lists.model.list_batches(0)


@pytest.mark.parametrize("name", ["expire", "error", "cancel", "duplicate", "missing", "pad"])
@pytest.mark.parametrize("which", [3, {}, {"bytes": 5}, [1], False])
def test_a_fault_says_for_which_requests(name: str, which: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is"):
        read_rules([{"do": {name: which}}])
