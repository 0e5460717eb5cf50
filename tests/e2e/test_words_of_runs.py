"""What the commands for runs and sessions say, to people and to programs, when all is well and when it is not."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.models.script import Script, call, calls, refuse, say
from tests.conftest import Place
from tests.support.apps import eventually, working
from tests.support.commands import environment, holdfast


class Desk(NamedTuple):
    url: str
    done: str
    refused: str
    asking: str


@pytest.fixture
async def desk(place: Place) -> Desk:
    """A run that has ended, one that the provider declined, and one that waits for two people."""
    hf = Holdfast(place.url, embedded=False)

    @hf.tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    hf.script("no", Script(refuse("cyber")))
    hf.script("till", Script(calls(*(call("pay", amount=n) for n in range(5))), say("done")))
    echo = hf.agent("echo", model="scripted:")
    other = hf.agent("other", model="scripted:", tenant="acme")
    no = hf.agent("no", model="scripted:no")
    till = hf.agent("till", model="scripted:till", tools=[pay])
    async with hf, working(hf):
        done = await echo.enqueue("hello", session="ann")
        refused = await no.enqueue("hello")
        asking = await till.enqueue("pay")
        theirs = await other.enqueue("secret", session="ann", tenant="acme")
        for run in (done, refused, theirs):
            await run.result()

        async def waits() -> bool:
            return (await asking.refresh()).state == "awaiting_input"

        await eventually(waits)
    return Desk(place.url, done.id, refused.id, asking.id)


def test_a_run_is_cancelled_once(desk: Desk) -> None:
    line = holdfast("runs", "cancel", desk.done, "--url", desk.url).refused(3)
    assert line == f"run {desk.done} has already ended as completed: there is nothing to cancel."
    for _ in range(2):
        assert holdfast("runs", "cancel", desk.asking, "--url", desk.url).lines == [f"run {desk.asking} is cancelled"]


def test_an_error_is_json_where_json_was_asked_for(desk: Desk) -> None:
    said = holdfast("runs", "show", "nope", "--url", desk.url, "--json")
    told = json.loads(said.out)
    assert (told["error"], told["retry"]) == ("NotFound", "never")
    assert told["message"] == told["detail"] == "there is no run nope in this database."
    assert told["remedy"]
    assert said.refused(2) == "there is no run nope in this database."
    wrong = holdfast("runs", "ls", "--state", "bogus", "--json")
    assert (json.loads(wrong.out)["error"], wrong.code) == ("BadParameter", 2)
    assert "bogus" in wrong.err
    assert holdfast("runs", "show", "nope", "--url", desk.url).out == ""


def test_a_run_that_asks_shows_what_and_under_which_digest(desk: Desk) -> None:
    shown = holdfast("runs", "show", desk.asking, "--url", desk.url).out
    rows = holdfast("runs", "show", desk.asking, "--url", desk.url, "--json").json["inquiries"]
    assert [row["call"]["input"]["amount"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows:
        assert row["id"] in shown
        assert row["digest"] in shown
    table = holdfast("runs", "inquiries", "--url", desk.url).out
    assert all(row["digest"] in table for row in rows)


@pytest.mark.long
def test_a_run_shows_its_mode_and_why_it_was_refused(desk: Desk) -> None:
    shown = dict(line.split(maxsplit=1) for line in holdfast("runs", "show", desk.done, "--url", desk.url).lines[:3])
    assert shown["mode"] == "streaming"
    assert "cyber" in holdfast("runs", "show", desk.refused, "--url", desk.url).out


def test_times_are_told_in_one_way(desk: Desk) -> None:
    (first, *_) = holdfast("runs", "inquiries", "--url", desk.url, "--json").json
    decided = holdfast("runs", "deny", first["id"], "--url", desk.url, "--json").json
    shown = holdfast("runs", "show", desk.done, "--url", desk.url, "--json").json
    times = [first["asked_at"], decided["asked_at"], decided["decided_at"], shown["turn_list"][0]["started_at"]]
    for time in times:
        assert time.startswith("20")
        assert time.endswith("Z")


@pytest.mark.long
def test_what_is_a_tenants_is_seen_with_its_name(desk: Desk) -> None:
    assert holdfast("sessions", "show", "ann", "--url", desk.url).lines[0] == "user: hello"
    theirs = ("--tenant", "acme", "--url", desk.url)
    assert holdfast("sessions", "show", "ann", *theirs).lines[0] == "user: secret"
    assert "total tokens" in holdfast("sessions", "stats", "ann", *theirs).out
    assert "protected or recent" in holdfast("sessions", "compact", "ann", *theirs).refused(3)
    assert "no session" in holdfast("sessions", "restore", "nobody", *theirs).refused(2)
    forked = holdfast("sessions", "fork", "ann", "--key", "bob", *theirs, "--json").json
    assert holdfast("sessions", "show", forked["id"], *theirs).lines[0] == "user: secret"
    assert "there is no session bob" in holdfast("sessions", "show", "bob", "--url", desk.url).refused(2)
    assert holdfast("agents", "show", "other", *theirs).code == 0
    alone = "there is no agent other in this database."
    assert holdfast("agents", "show", "other", "--url", desk.url).refused(2) == alone, "it is a tenant's"
    assert holdfast("agents", "show", "othr", *theirs).refused(2).endswith(" Did you mean 'other'?")


def test_runs_are_listed_by_the_key_of_their_session(desk: Desk) -> None:
    rows = holdfast("runs", "ls", "--session", "ann", "--url", desk.url, "--json").json
    assert [row["id"] for row in rows] == [desk.done]
    assert "there is no session bob" in holdfast("runs", "ls", "--session", "bob", "--url", desk.url).refused(2)


@pytest.mark.long
def test_a_compaction_can_touch_all_and_says_why_it_cannot_be_done(desk: Desk) -> None:
    bare = environment(ANTHROPIC_API_KEY="")
    words = ("sessions", "compact", "ann", "--strategy", "summarize", "--preserve-last", "0", "--protected-tokens", "0")
    line = holdfast(*words, "--summarizer", "claude-haiku-5-5", "--url", desk.url, env=bare).refused(3)
    assert "ANTHROPIC_API_KEY" in line
    unlisted = holdfast(*words, "--summarizer", "nobody-1", "--url", desk.url, env=bare)
    warning, problem = unlisted.err.splitlines()
    assert (unlisted.code, "nobody-1" in warning, "ANTHROPIC_API_KEY" in problem) == (3, True, True)
    assert "summarised" in holdfast(*words, "--summarizer", "scripted:", "--url", desk.url).out


@pytest.mark.sample(1)
@pytest.mark.parametrize("amount", ["inf", "99999999999", "-1", "abc"])
def test_an_amount_that_is_none_is_called_wrongly(desk: Desk, amount: str) -> None:
    assert holdfast("budgets", "set", "--url", desk.url, "--", amount).refused(2)


def test_arguments_that_do_not_fit_leave_the_inquiry_open(desk: Desk) -> None:
    (first, *_) = holdfast("runs", "inquiries", "--url", desk.url, "--json").json
    for changed, words in (
        ('{"x": 1}', "amount is missing"),
        ('{"amount": 1, "x": 1}', "there is no x"),
        ('{"amount": "many"}', "amount is not of type integer"),
    ):
        line = holdfast("runs", "approve", first["id"], "--input", changed, "--url", desk.url).refused(2)
        assert line == f"these arguments do not fit tool:pay: {words}."
    done = holdfast("runs", "approve", first["id"], "--input", '{"amount": 7}', "--url", desk.url).lines
    assert done == [f"inquiry {first['id']} is approved"]
