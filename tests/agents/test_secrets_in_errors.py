"""Secrets in the errors of tools: what a tool raises goes to a model and into the store without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from holdfast import Discard, Holdfast, Retry, Snooze
from holdfast.agents.definition import Mode
from holdfast.agents.people.questions import OUTCOME_UNKNOWN
from holdfast.kernel.complete import error_json
from holdfast.models.script import Script, call, calls, say
from holdfast.models.simulator import simulator
from holdfast.outcomes import Fail, TryAgain
from holdfast.settings import Settings
from holdfast.testing import Labs
from holdfast.text import REDACTED
from holdfast.workers.endings import redacted, without_secrets
from holdfast.workers.isolation import frames
from tests.agents import isolated_tools
from tests.conftest import Place
from tests.support.agents import MODEL, Noting, results, settle
from tests.support.apps import eventually
from tests.support.contents import contents_at, mentions
from tests.support.notes import Notes
from tests.support.past_kernel import query

CANARY = "c4n4ry"
KEY = f"sk-ant-api03-{CANARY}0123456789abcdef"
URL = f"postgresql://app:{CANARY}hunter2@db.internal/orders"


def told(place: Place) -> str:
    """Everything in every table."""
    if place.url.startswith("sqlite"):
        names = query(place, "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
    else:
        names = query(place, "select tablename from pg_tables where schemaname = 'holdfast'")
    return "\n".join(f"{name}: {row}" for (name,) in names for row in query(place, f"select * from holdfast.{name}"))


def leaking(hf: Holdfast) -> list[Any]:
    @hf.tool(retry=Retry(attempts=2, base="0s"))
    def raises() -> str:
        """Raises, with notes and a cause."""
        try:
            raise ConnectionError(f"cannot reach {URL}")
        except ConnectionError as cause:
            problem = RuntimeError(f"401 for {KEY}", {"password": CANARY})
            problem.add_note(f"Authorization: Bearer {CANARY}.abcdefgh")
            raise problem from cause

    @hf.tool(retry=Retry.none())
    async def fails() -> Any:
        """Says why it failed."""
        return Fail(f'{{"error": "bad token", "api_key": "{CANARY}"}}')

    @hf.tool
    async def discards() -> str:
        """Gives up."""
        raise Discard(f"api_key={CANARY}1234 is not valid")

    waited: list[str] = []

    @hf.tool
    async def waits() -> str:
        """Comes back later, and says why."""
        if not waited:
            waited.append("once")
            raise Snooze("10ms", f"429 for {KEY}")
        raise Discard(f"still 429 for {KEY}")

    return [raises, fails, discards, waits, hf.tool(isolate="process", retry=Retry.none())(isolated_tools.leaks)]


async def test_a_secret_that_a_tool_raises_is_in_no_table_and_no_request(
    hf: Holdfast, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LEAKED_KEY", KEY)
    notes = await hf.mcp("notes", command=Notes(tmp_path).command(), env={"NOTES_OWNER": KEY}, only=["refuse"])
    tools = [*leaking(hf), *notes]
    asked = [*(call(tool.name) for tool in tools[:5]), call("notes_refuse", reason="owner")]
    script = Noting(calls(*asked), say("done"))
    hf.script("canary", script)
    result = await hf.agent("leaky", model="scripted:canary", tools=tools).run("Go")
    assert result.text == "done"
    errors = {tool.name: block for tool, block in zip(tools, await results(hf, result.session_id), strict=True)}
    assert all(block["is_error"] and REDACTED in block["content"] for block in errors.values()), errors
    assert "401 for [redacted]" in errors["raises"]["content"], "what is no secret is told"
    attempts = query(place, "select error from holdfast.attempt where error is not null")
    assert any("Traceback" in str(row) for row in attempts), "where it came from is kept"
    assert CANARY not in str(script.bodies)
    assert [line for line in told(place).splitlines() if CANARY in line] == []


async def test_a_secret_is_not_shown_to_the_person_who_reviews(hf: Holdfast, place: Place) -> None:
    @hf.tool(effect="once")
    async def pays() -> Any:
        """Pays, perhaps."""
        return Fail(f"no answer from {URL}", OUTCOME_UNKNOWN)

    @hf.inquiries.on_open
    def ring(inquiry: Any) -> None:
        raise RuntimeError(f"the mail server refused {KEY}")

    hf.script("canary", Noting(call("pays"), say("done")))
    await hf.ensure_worker()
    run = await hf.agent("payer", model="scripted:canary", tools=[pays]).enqueue("Pay")

    async def rung() -> bool:
        tried = query(place, "select error from holdfast.attempt where error is not null")
        return any("the mail server refused" in str(row) for row in tried)

    await eventually(rung)
    (inquiry,) = await run.inquiries()
    assert (inquiry.kind, REDACTED in inquiry.data["reason"]) == ("review", True)
    assert CANARY not in str(await run.why())
    await hf.answer(inquiry.id, "it was paid")
    await run.result()
    assert [line for line in told(place).splitlines() if CANARY in line] == []


@pytest.mark.parametrize("kind", [ValueError, AssertionError])
async def test_a_secret_that_a_validator_raises_is_in_no_table_and_no_request(
    hf: Holdfast, place: Place, kind: type[Exception]
) -> None:
    class Order(BaseModel):
        id: str

        @field_validator("id")
        @classmethod
        def known(cls, value: str) -> str:
            raise kind(f"cannot find {value} at {URL} with api_key={KEY}")

    script = Noting(say('{"id": "x"}'))
    hf.script("canary", script)
    result = await hf.agent("orders", model="scripted:canary", output=Order).run("Go")
    assert (result.outcome, result.turns) == ("unfit", 2)
    assert "cannot find x at" in str(script.bodies[-1])
    assert CANARY not in str(script.bodies)
    assert [line for line in told(place).splitlines() if CANARY in line] == []


@pytest.mark.parametrize("mode", ["streaming", "batch"])
async def test_a_validator_that_fails_is_the_program_s_error_and_is_tried_again(
    provided: Labs, mode: Mode, place: Place
) -> None:
    hf = Holdfast(place.url)
    failures = [ConnectionError(f"cannot reach {URL}"), KeyError(KEY)]

    class Order(BaseModel):
        id: str

        @field_validator("id")
        @classmethod
        def known(cls, value: str) -> str:
            if failures:
                raise failures.pop()
            return value

    agent = hf.agent("orders", model=MODEL, output=Order)
    script = Noting(say('{"id": "x"}'))
    lab = await provided.use(hf, script)
    run = await agent.enqueue("Go", mode=mode)
    await settle(lab, run)
    result = await run.result()
    assert (result.outcome, result.output.id, result.turns) == ("answered", "x", 1)
    assert CANARY not in str(script.bodies)
    assert mentions(contents_at(lab.url), CANARY) == {}


async def test_a_key_that_a_provider_repeats_is_in_no_table(provided: Labs, place: Place) -> None:
    hf = Holdfast(place.url)
    rules = [{"do": {"status": 401, "message": f"invalid x-api-key: {KEY}"}}]
    async with simulator(script=Script(say("x")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        lab = await provided.use(hf)
        run = await hf.agent("a", model=MODEL).enqueue("Go")
        await lab.drain()
        why = str(await run.why())
        assert f"invalid x-api-key: {REDACTED}" in why
        assert CANARY not in why
        assert mentions(contents_at(lab.url), CANARY) == {}


async def test_a_job_of_the_program_s_own_keeps_its_errors(hf: Holdfast, place: Place) -> None:
    @hf.job(retry=Retry.none())
    async def fetch() -> None:
        raise RuntimeError(f"401 for {KEY}")

    await hf.ensure_worker()
    job = await fetch.enqueue()

    async def failed() -> bool:
        return (await hf.jobs.get(job.id)).state == "failed"

    await eventually(failed)
    assert KEY in str((await hf.jobs.get(job.id)).error)


def test_a_secret_at_the_end_of_what_is_kept_is_taken_out_whole() -> None:
    cap = Settings().error_cap
    assert CANARY not in redacted("x " * (cap // 2 - 5) + KEY, cap)
    assert len(redacted("x" * 10_000_000, cap)) < 5 * cap


@pytest.mark.parametrize("beside", range(-40, 41, 4))
def test_a_secret_where_a_job_s_own_process_cuts_is_taken_out_whole(beside: int) -> None:
    """The process sends what it raised to its worker, which redacts it; what is cut in half looks like no secret."""
    cap = 3_000
    error = ("x " * cap)[: cap + beside] + KEY
    trace = (
        ("y " * cap)[: cap // 3 + beside]
        + KEY
        + " z" * (cap // 3)
        + " "
        + KEY
        + (" z" * cap)[: cap - cap // 3 + beside]
    )
    outcome = frames.read_outcome(frames.write_outcome(TryAgain("0s", error, "ValueError", trace), cap))
    assert isinstance(outcome, TryAgain)
    kept = without_secrets(outcome, cap)
    assert isinstance(kept, TryAgain)
    stored = error_json(kept.type, kept.error, kept.trace, cap=cap)
    assert CANARY not in stored
    assert "0123" not in stored
    assert "sk-ant" not in stored
    assert len(stored) < 3 * cap


def test_the_longest_error_of_a_job_s_own_process_fits_into_a_frame() -> None:
    settings = Settings(payload_cap=1_024, metadata_cap=1_024, result_cap=1_024, progress_cap=1_024)
    longest = "\x01" * 1_000_000
    told = frames.write_outcome(TryAgain("0s", longest, longest, longest), settings.error_cap)
    assert frames.pack({"outcome": told}, frames.limit(settings, 1_024))
