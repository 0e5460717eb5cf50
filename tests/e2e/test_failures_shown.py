"""Failures and workers as a person sees them: the log, the introduction, the notes, `jobs show`, `runs show`, `top`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Holdfast, Retry, RunFailed
from holdfast.app import core_of
from holdfast.errors import VERSION
from holdfast.models.script import Script, call, say
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.commands import environment, holdfast, program

KEY = "sk-ant-api03-c4n4ry0123456789abcdef"
CANARY = f"{KEY} \x1b[31m\u202e"

SCRIPT = """
from holdfast import Holdfast, Retry

hf = Holdfast("sqlite:///script.db")


@hf.job(retry=Retry.none())
async def fragile() -> None:
    raise ValueError("it broke")  # the user's own line


try:
    fragile.run_sync()
finally:
    hf.sync.close()
"""

SERVING = '''
from holdfast import Holdfast, Retry

hf = Holdfast()


def nothing() -> None: ...


for number in range(40):
    hf.job(name=f"many-{number:02}")(nothing)


@hf.schedule("0 7 * * *", name="morning")
def wake() -> None: ...


@hf.job(name="fragile", retry=Retry.none())
async def fragile(text: str) -> None:
    raise ValueError(text)


@hf.tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


hf.agent("guide", model="scripted:guide", tools=[look_up])
hf.agent("paid", model="claude-sonnet-4-5")
'''


def safe(text: str) -> bool:
    return KEY not in text and "\x1b" not in text and "\u202e" not in text


def test_a_script_shows_a_failure_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    said = program("script.py", cwd=tmp_path)
    assert said.code == 1
    assert said.err.count("# the user's own line") == 1, said.err
    assert "RunFailed: job" in said.err
    assert said.err.rstrip().endswith("ValueError: it broke")


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    (tmp_path / "serving.py").write_text(SERVING)
    return tmp_path


def test_a_worker_introduces_itself_and_says_goodbye(serving: Path, place: Place) -> None:
    env = environment()
    env.pop("ANTHROPIC_API_KEY", None)
    words = (
        "worker",
        "serving:hf",
        "--url",
        place.url,
        "--until-empty",
        "--log-level",
        "error",
        "--queues",
        "mail,web",
    )
    said = holdfast(*words, cwd=serving, env=env)
    assert said.code == 0, said
    first, *lines = said.err.splitlines()
    assert f"holdfast {VERSION}, " in first
    assert "schema " in first
    told = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert told["queues"] == "mail, web"
    assert told["jobs"].endswith("and 30 more")
    assert (told["agents"], told["tools"], told["schedules"]) == ("guide", "look_up", "morning")
    assert "20 for jobs" in told["slots"]
    assert told["left"] == "out   paid: there is no key: ANTHROPIC_API_KEY is not set"
    assert [line.split("INFO")[1].split(":")[0].strip() for line in lines if "INFO" in line] == ["ready", "stopped"]
    assert "\x1b" not in said.err, "no colours where it is not a terminal"


def test_a_missing_key_is_told_once(serving: Path) -> None:
    env = environment()
    env.pop("ANTHROPIC_API_KEY", None)
    said = holdfast("worker", "serving:hf", "--until-empty", "--url", "sqlite:///own.db", cwd=serving, env=env)
    assert said.err.count("ANTHROPIC_API_KEY") == 1, said.err


@pytest.mark.long
def test_a_password_in_the_url_is_not_shown(serving: Path) -> None:
    said = holdfast("worker", "serving:hf", "--url", "postgresql://ann:hunter2@127.0.0.1:1/x", cwd=serving)
    assert said.code == 4
    assert "hunter2" not in said.err


@pytest.fixture
async def canaries(place: Place) -> dict[str, str]:
    """A job and a run that failed with a secret and commands for the terminal wherever they can be."""
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name=f"kind {CANARY}", retry=Retry(attempts=2, base="1ms"))
    async def leak(text: str) -> None:
        raise ValueError(f"cannot read {text}")  # the user's own line

    @hf.job(retry=Retry(attempts=2, base="1h"))
    async def tired() -> None:
        raise ValueError(f"not now: {CANARY}")

    @hf.tool(retry=Retry.none())
    def look_up(word: str) -> str:
        """Look a word up."""
        raise LookupError(f"no {word}")  # the tool's own line

    @hf.tool
    def echo(word: str) -> str:
        """Say it again."""
        return word

    hf.script("canary", Script(call("look_up", word=CANARY), call("echo", word=CANARY), say("done")))
    agent = hf.agent("guide", model="scripted:canary", tools=[look_up, echo])
    waiting, job = await tired.enqueue(), await leak.enqueue(CANARY)
    worker = core_of(hf).make_worker(Role(name="mill"))
    await worker.start()
    run = await agent.enqueue("go")
    await run.result()
    with pytest.raises(RunFailed):
        await job.result()
    await worker.stop()
    await hf.queues.pause("default", reason=CANARY)
    await hf.close()
    return {"job": job.id, "run": run.id, "waiting": waiting.id}


def test_no_command_shows_a_secret_or_commands_the_terminal(place: Place, canaries: dict[str, str]) -> None:
    job = holdfast("jobs", "show", canaries["job"], "--url", place.url)
    run = holdfast("runs", "show", canaries["run"], "--url", place.url)
    top = holdfast("top", "--once", "--url", place.url)
    why = holdfast("jobs", "why", canaries["waiting"], "--url", place.url)
    same = holdfast("runs", "why", canaries["waiting"], "--url", place.url)
    doctor = holdfast("doctor", "--url", place.url)
    for said in (job, run, top, why, same, doctor):
        assert said.code == 0, said
        assert safe(said.out), said.out
    assert "after attempt 1 of 2: ValueError: not now: [redacted]" in why.out
    assert "queue default is paused: [redacted]" in doctor.out
    assert job.out.count("# the user's own line") == 1, "the same failure is shown once"
    assert "\nerror: processing_error: ValueError: cannot read [redacted] \\x1b[31m\\u202e\n" in job.out
    assert job.out.rstrip().splitlines()[-1].startswith("  ValueError: cannot read")
    assert run.out.count("# the tool's own line") == 1
    assert "): failed, LookupError: no [redacted] \\x1b[31m\\u202e\n" in run.out, (
        "a failed call says its error, not JSON"
    )
    assert "look_up in turn 1: processing_error: LookupError: no [redacted]" in run.out


async def test_log_lines_are_json_for_programs(serving: Path, place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="fragile", retry=Retry.none())
    async def fragile(text: str) -> None: ...

    job = await fragile.enqueue(CANARY)
    await hf.close()
    env = environment(HOLDFAST_LOG_FORMAT="json")
    said = holdfast("worker", "serving:hf", "--url", place.url, "--until-empty", cwd=serving, env=env)
    records = [json.loads(line) for line in said.err.splitlines()]
    assert len(records[0]["jobs"]) == 42
    (ready,) = [record for record in records if record.get("ready")]
    assert ready["message"] == f"ready: worker {ready['worker']}"
    assert records[-1]["finished"] == 1
    (failed,) = [record for record in records if record["level"] == "error"]
    assert (failed["job"], failed["kind"], failed["attempt"], failed["outcome"]) == (job.id, "fragile", 1, "failed")
    assert failed["traceback"].startswith("Traceback")
    assert safe(said.err)
