"""Batches of scripted models: kept for every process of the machine, answered by the script, billed once."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.models import (
    Batches,
    MemoryShelf,
    Model,
    ModelFailure,
    ResponseHead,
    Script,
    ScriptedModel,
    ends,
    open_model,
    say,
)
from holdfast.models.spool import read_witness
from holdfast.testing.clock import LabClock
from tests.models.conftest import ask, item, items, request_of, results, submit, types
from tests.support.commands import python

Make = Callable[..., ScriptedModel]


@pytest.fixture(params=["folder", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Models that see each other's batches."""
    batches: Any = tmp_path / "spool" if request.param == "folder" else MemoryShelf()
    return lambda script=None, **more: ScriptedModel(script, batches=batches, **more)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def age(folder: Path, id: str, seconds: float) -> None:
    """Let the files of a batch be that old."""
    for path in folder.glob(f"{id}*"):
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


async def test_it_is_a_model_and_takes_batches(make: Make) -> None:
    model = make()
    by_type: Model = model
    assert isinstance(by_type, Batches)


async def test_what_one_has_made_another_reads(make: Make) -> None:
    maker, reader = make(Script(lambda messages: say(f"re: {messages[-1]['content']}"))), make()
    told: list[ResponseHead] = []
    made = await maker.submit_batch(items(2), call="c", total=60, answered=told.append)
    assert (made.status, made.size, made.counts["processing"], len(told)) == ("in_progress", 2, 2, 1)
    await maker.close()
    ended = await reader.get_batch(made.id)
    assert (ended.ended, ended.size, ended.counts["succeeded"]) == (True, 2, 2)
    assert [batch.id for batch in await reader.list_batches(made.created_us)] == [made.id]
    lines = await results(reader, made.id)
    assert [(line.custom_id, (line.message or {})["content"][0]["text"]) for line in lines] == [
        ("r-1", "re: hello 1"),
        ("r-2", "re: hello 2"),
    ]


async def test_an_answer_is_what_it_would_be_alone_but_for_its_price(make: Make) -> None:
    model = make()
    made = await submit(model, item("a", "hello"), item("b", "hello"))
    first, second = [line.message or {} for line in await results(model, made.id)]
    alone = await ask(model, request_of("hello"))
    assert (first["content"], first["stop_reason"]) == (alone.blocks, alone.stop_reason)
    assert first["usage"] == {**alone.usage, "service_tier": "batch"}
    assert first["id"] != second["id"]


async def test_a_batch_ends_by_the_models_clock(make: Make) -> None:
    clock = LabClock()
    model = make(batch_time=60, ports=Ports(clock=clock))
    made = await submit(model, *items(2))
    await clock.advance("59s")
    assert await model.get_batch(made.id) == made
    with pytest.raises(ModelFailure, match="has not ended") as early:
        await results(model, made.id)
    assert (early.value.kind, early.value.bought) == ("not_found", "no")
    await clock.advance("1s")
    assert (await model.get_batch(made.id)).ended_us == made.created_us + 60_000_000
    assert len(await results(model, made.id)) == 2


@pytest.mark.parametrize("seconds", [-1, 24 * 3600])
def test_a_batch_ends_within_a_day(seconds: float) -> None:
    with pytest.raises(UsageError, match="within a day"):
        ScriptedModel(batch_time=seconds)


async def test_the_list_is_newest_first_and_no_older_than_asked(make: Make) -> None:
    clock = LabClock()
    model = make(ports=Ports(clock=clock))
    made = []
    for _ in range(3):
        made.append(await submit(model, *items(1)))
        await clock.advance("1s")
    assert [batch.id for batch in await model.list_batches(0)] == [batch.id for batch in made[::-1]]
    assert [batch.id for batch in await model.list_batches(made[1].created_us)] == [made[2].id, made[1].id]


async def test_a_cancel_ends_it_and_takes_nothing_back(make: Make) -> None:
    clock = LabClock()
    model, other = (make(batch_time=3600, ports=Ports(clock=clock)) for _ in range(2))
    made = await submit(model, *items(2))
    await clock.advance("1m")
    assert (await other.cancel_batch(made.id)).status == "canceling"
    ended = await model.get_batch(made.id)
    assert (ended.ended_us, ended.counts["succeeded"]) == (made.created_us + 60_000_000, 2)
    assert await types(model, made.id) == {"r-1": "succeeded", "r-2": "succeeded"}
    with pytest.raises(ModelFailure, match="has ended") as late:
        await model.cancel_batch(made.id)
    assert (late.value.kind, late.value.bought) == ("bad_request", "no")


@pytest.mark.parametrize("id", ["msgbatch_nobody", "../secret", "", "a/b"])
async def test_a_batch_that_nobody_made_is_not_found(make: Make, id: str) -> None:
    model = make()
    for look in (model.get_batch(id), model.cancel_batch(id), results(model, id)):
        with pytest.raises(ModelFailure, match="there is no batch") as caught:
            await look
        assert (caught.value.kind, caught.value.bought) == ("not_found", "no")


async def test_what_the_script_cannot_answer_is_an_error_of_that_request_alone(make: Make) -> None:
    model = make(Script(say("only")))
    late = request_of("a", "b", [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]).body()["messages"]
    asked = [item("good"), item("late", messages=late), item("none")._replace(params="[]")]
    made = await submit(model, *asked, item("empty")._replace(params="{}"), item("half", "\ud83d"))
    lines = {line.custom_id: line for line in await results(model, made.id)}
    assert {id: line.type for id, line in lines.items() if line.type != "errored"} == {"good": "succeeded"}
    assert {(line.error or {})["type"] for line in lines.values() if line.error} == {"invalid_request_error"}
    assert "is asked for step 2" in (lines["late"].error or {})["message"]
    assert (await model.get_batch(made.id)).counts["errored"] == 4


async def test_what_is_no_batch_is_refused_and_not_kept(make: Make) -> None:
    model = make()
    for asked in ([], [item("a"), item("a")], [item("a b")], [item("a"), item("b")._replace(params="{")]):
        with pytest.raises(ModelFailure) as caught:
            await submit(model, *asked)
        assert (caught.value.kind, caught.value.bought) == ("bad_request", "no")
    assert await model.list_batches(0) == []
    assert list(model.witness.lines) == []


async def test_the_witness_knows_each_batch_and_each_bill(make: Make, tmp_path: Path) -> None:
    model = make(Script(lambda messages: say("x") if "1" in messages[-1]["content"] else ends("end_turn")),
                 witness=tmp_path / "witness", batch_time=3600)  # fmt: skip
    made = await submit(model, *items(2), item("bad")._replace(params="{}"), call="worker-1/7")
    first, *bills = read_witness(tmp_path / "witness")
    assert first == {"event": "batch", "batch": made.id, "size": 3, "call": "worker-1/7"}
    assert [(bill["event"], bill["call"], bill["batch"]) for bill in bills] == [
        ("billed", "r-1", made.id),
        ("billed", "r-2", made.id),
    ]
    assert bills[0]["usage"]["service_tier"] == "batch"
    assert {(bill["model"], bill["tier"]) for bill in bills} == {(request_of().model, "batch")}
    await model.close()


async def test_the_same_seed_makes_no_batch_twice(make: Make) -> None:
    models = [make(ports=Ports(random=random.Random(7))) for _ in range(2)]
    ids = {(await submit(model, *items(1))).id for model in models}
    assert len(ids) == 2
    assert len(await models[0].list_batches(0)) == 2


async def test_a_batch_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    code = f"""
import asyncio, json, os, signal
from pathlib import Path
from holdfast.models import BatchItem, ScriptedModel
params = {item("a").params!r}

async def main():
    model = ScriptedModel(batches=Path({str(tmp_path)!r}))
    made = await model.submit_batch([BatchItem("a", params)], call="c", total=60, answered=lambda _: None)
    print(made.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    id = python("-c", code).out.strip()
    assert await types(ScriptedModel(batches=tmp_path), id) == {"a": "succeeded"}


async def test_an_id_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    made = await submit(ScriptedModel(batches=tmp_path), *items(1))
    (tmp_path / "inner").mkdir()
    with pytest.raises(ModelFailure, match="there is no batch"):
        await ScriptedModel(batches=tmp_path / "inner").get_batch(f"../{made.id}")


async def test_what_was_not_finished_is_no_batch(tmp_path: Path) -> None:
    model = ScriptedModel(batches=tmp_path)
    made = await submit(model, *items(1))
    whole = tmp_path / f"{made.id}.jsonl"
    (tmp_path / "msgbatch_half.jsonl.4711").write_bytes(whole.read_bytes()[:20])
    assert [batch.id for batch in await model.list_batches(0)] == [made.id]


async def test_a_file_is_a_line_about_the_batch_and_a_line_for_each_result(tmp_path: Path) -> None:
    made = await submit(ScriptedModel(batches=tmp_path), *items(3), call="c")
    about, *lines = map(json.loads, (tmp_path / f"{made.id}.jsonl").read_text().splitlines())
    assert (about["id"], about["call"], about["counts"]) == (made.id, "c", {"succeeded": 3})
    assert [line["custom_id"] for line in lines] == ["r-1", "r-2", "r-3"]


async def test_old_batches_are_removed(tmp_path: Path) -> None:
    model = ScriptedModel(batches=tmp_path, batch_time=3600)
    old, older, kept = [(await submit(model, *items(1))).id for _ in range(3)]
    await model.cancel_batch(old)
    for id in (old, older):
        age(tmp_path, id, 2 * 24 * 3600 + 60)
    new = (await submit(model, *items(1))).id
    assert names(tmp_path) == {f"{kept}.jsonl", f"{new}.jsonl"}
    with pytest.raises(ModelFailure, match="there is no batch"):
        await model.get_batch(old)


async def test_the_future_of_a_test_removes_nothing(tmp_path: Path) -> None:
    kept = await submit(ScriptedModel(batches=tmp_path), *items(1))
    clock = LabClock()
    await clock.advance("30d")
    await submit(ScriptedModel(batches=tmp_path, ports=Ports(clock=clock)), *items(1))
    assert (await ScriptedModel(batches=tmp_path).get_batch(kept.id)).ended


async def test_results_that_are_removed_while_they_are_asked_for_are_gone(tmp_path: Path) -> None:
    model = ScriptedModel(batches=tmp_path)
    made = await submit(model, *items(1))
    (tmp_path / f"{made.id}.jsonl").unlink()
    with pytest.raises(ModelFailure) as caught:
        await results(model, made.id)
    assert caught.value.kind == "not_found"


async def test_without_a_folder_there_is_one_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = ScriptedModel()
    assert names(tmp_path) == set()  # nothing before there is a batch
    assert await model.list_batches(0) == []
    made = await submit(model, *items(1))
    folder = tmp_path / f"holdfast-batches-{os.getuid()}"
    assert (names(tmp_path), folder.stat().st_mode & 0o777) == ({folder.name}, 0o700)
    assert await types(ScriptedModel(), made.id) == {"r-1": "succeeded"}


async def test_a_folder_that_somebody_else_has_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"holdfast-batches-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="belongs to somebody else"):
        await submit(ScriptedModel(), *items(1))
    assert names(tmp_path / "theirs") == set()


async def test_a_model_is_opened_with_its_batches(tmp_path: Path) -> None:
    clock = LabClock()
    opened = [
        open_model("scripted:", ports=Ports(clock=clock), batch_time=60, batches=tmp_path / "spool") for _ in range(2)
    ]
    first, second = opened
    assert isinstance(first, Batches)
    assert isinstance(second, Batches)
    made = await submit(first, *items(1))
    assert not (await second.get_batch(made.id)).ended
    await clock.advance("1m")
    assert (await second.get_batch(made.id)).ended
