"""`holdfast runs inquiries/approve/deny/answer`, `batches`, `usage` and `budgets`, as people use them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdfast import Holdfast, Run
from holdfast.app import core_of
from holdfast.models.script import Script, call, calls, say
from holdfast.settings import Settings
from tests.conftest import Place
from tests.support.apps import eventually, working
from tests.support.commands import holdfast
from tests.support.past_kernel import query


class Asked(NamedTuple):
    url: str
    run: str


def shop(place: Place) -> Holdfast:
    hf = Holdfast(place.url, embedded=False, settings=Settings().override({"batch_wait": "0s"}))

    @hf.tool(approve=True)
    def refund(number: str, amount: int) -> str:
        """Refund."""
        return f"refunded {amount}"

    hf.script(
        "till",
        Script(calls(call("refund", number="A1", amount=80), call("ask_person", question="Which?")), say("done")),
    )
    hf.agent("till", model="scripted:till", tools=[refund, hf.inquiries.question()])
    hf.agent("writer", model="scripted:priced")
    return hf


@pytest.fixture
async def asked(place: Place) -> Asked:
    """A run that waits for a person, twice."""
    hf = shop(place)
    async with hf, working(hf):
        run: Run[str] = await core_of(hf).defined["till"].enqueue("Refund A1")

        async def waits() -> bool:
            return (await run.refresh()).state == "awaiting_input"

        await eventually(waits)
    return Asked(place.url, run.id)


@pytest.mark.long
async def test_what_is_asked_is_listed_and_decided(asked: Asked, place: Place) -> None:
    heading, *lines = holdfast("runs", "inquiries", "--url", asked.url).lines
    assert heading.split() == ["ID", "KIND", "STATE", "BY", "RUN", "ABOUT", "ASKED", "DIGEST"]
    assert sorted(line.split()[1] for line in lines) == ["approval", "question"]
    rows = holdfast("runs", "inquiries", "--run", asked.run, "--url", asked.url, "--json").json
    by_kind = {row["kind"]: row for row in rows}
    approval, question = by_kind["approval"], by_kind["question"]
    assert approval["call"]["input"] == {"number": "A1", "amount": 80}
    both = holdfast("runs", "approve", asked.run, "--url", asked.url)
    assert "2 inquiries open" in both.err
    wrong = holdfast("runs", "approve", approval["id"], "--digest", "other", "--url", asked.url)
    assert (wrong.code, "digest" in wrong.err) == (3, True)
    bad = holdfast("runs", "approve", approval["id"], "--input", "[1]", "--url", asked.url)
    assert "JSON object" in bad.err
    changed = '{"number": "A1", "amount": 40}'
    done = holdfast(
        *("runs", "approve", approval["id"], "--digest", approval["digest"], "--by", "ann", "--input", changed),
        *("--url", asked.url),
    )
    assert done.lines == [f"inquiry {approval['id']} is approved"]
    late = holdfast("runs", "deny", approval["id"], "--message", "no", "--url", asked.url)
    assert (late.code, "by ann" in late.err) == (3, True)
    answered = holdfast("runs", "answer", question["id"], "the left one", "--url", asked.url, "--json").json
    assert (answered["state"], answered["decision"]) == ("answered", {"answer": "the left one"})
    assert holdfast("runs", "inquiries", "--url", asked.url).lines == ["no inquiry is open"]
    hf = shop(place)
    async with hf, working(hf):
        assert (await hf.runs[asked.run].result()).text == "done"
        given = [call.output for call in await hf.runs[asked.run].calls()]
    assert given == ["refunded 40", "the left one"]


@pytest.mark.long
async def test_usage_budgets_and_batches_are_told(place: Place) -> None:
    hf = shop(place)
    url = ("--url", place.url)
    async with hf, working(hf):
        await core_of(hf).defined["writer"].run("One", tenant="acme")
        batched = await core_of(hf).defined["writer"].enqueue("Two", tenant="other", mode="batch")
        await batched.result()
        (batch,) = await hf.batches.list()
    total = holdfast("usage", *url, "--json").json
    assert [row["turns"] for row in total] == [2]
    apart = holdfast("usage", "--by", "tenant", "--by", "mode", *url, "--json").json
    assert {(row["tenant"], row["mode"]) for row in apart} == {("acme", "streaming"), ("other", "batch")}
    assert sum(row["cost_nano"] for row in apart) == total[0]["cost_nano"] > 0
    heading, line = holdfast("usage", "--by", "agent", *url).lines
    assert (heading.split()[0], line.split()[:2]) == ("AGENT", ["writer", "2"])
    assert holdfast("usage", "--since", "2031-01-01", *url).lines == ["nothing was used"]

    made = holdfast("budgets", "set", "20.00", "--tenant", "acme", "--per", "1d", *url, "--json").json
    assert (made["subject"], made["cost"], made["per"]) == ("acme", "20", "1d")
    assert "tenant acme" in holdfast("budgets", "ls", *url).out
    assert holdfast("budgets", "set", "much", *url).code == 2
    assert holdfast("budgets", "delete", made["id"], *url).lines == [f"budget {made['id']} is deleted"]
    assert holdfast("budgets", "ls", *url).lines == ["no budgets"]

    heading, line = holdfast("batches", "ls", *url).lines
    assert line.split()[:2] == [batch.id, "ended"]
    shown = holdfast("batches", "show", batch.id, *url).out
    assert f"{batched.id}_1_1" in shown
    whole = holdfast("batches", "show", batch.id, *url, "--json").json
    assert (whole["size"], whole["applied"], whole["requests"][0]["outcome"]) == (1, 1, "succeeded")
    assert holdfast("batches", "show", "nothing", *url).code == 2


@pytest.mark.long
async def test_who_decides_too_late_is_told_so(asked: Asked, place: Place) -> None:
    url = ("--url", asked.url)
    rows = {row["kind"]: row["id"] for row in holdfast("runs", "inquiries", *url, "--json").json}
    query(place, "update holdfast.inquiry set expires_at = 1 where state = 'open' returning id")
    late = {
        "approve": holdfast("runs", "approve", rows["approval"], *url),
        "deny": holdfast("runs", "deny", rows["approval"], *url),
        "answer": holdfast("runs", "answer", rows["question"], "the left one", *url),
    }
    assert {name: told.code for name, told in late.items()} == dict.fromkeys(late, 3)
    assert all("its time limit passed at 1970-01-01 00:00:00 UTC" in told.err for told in late.values())
    assert "so the call of refund was denied" in late["approve"].err
    states = [row["state"] for row in holdfast("runs", "inquiries", "--all", *url, "--json").json]
    assert states == ["expired", "expired"]
