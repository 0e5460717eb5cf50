"""Plans of Unix tools, run by the worker's own executor: no gateway, real processes."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.agw.execution import REPORTED, PlanResult, UnixTools, execute, find_tools, read_card
from holdfast.agw.processes import ProcessLimits
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.resp.plan import BadPlan, UnixPlan, read_plan
from tests.support.apps import eventually

TOOLS = ("sort", "uniq", "cat", "printf", "head", "sh", "env", "pwd", "sleep", "false", "setsid", "yes", "touch")


def plan(*tasks: dict[str, Any]) -> UnixPlan:
    numbered = [{"task_number": number, **task} for number, task in enumerate(tasks, 1)]
    return read_plan({"plan_id": "p", "tasks": numbered})


async def ran(plan: UnixPlan, input: object = None, limits: ProcessLimits | None = None) -> PlanResult:
    return await execute(plan, input, UnixTools(find_tools(TOOLS)), limits or ProcessLimits(), SystemClock())


_numbers = itertools.count()


def long_time() -> str:
    """Seconds for `sleep`, longer than any test. No other test and no other run of the suite has the same number."""
    return f"{10_000 + next(_numbers)}.{os.getpid()}"


def alive(marker: str, program: str = "") -> bool:
    """Whether there is a process with this word in its command line, in which `program` runs."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in words and words[0].endswith(program.encode()):
                return True
    return False


async def test_agx_29_a_pipeline_gives_the_expected_bytes() -> None:
    done = await ran(
        plan(
            {"command": "printf", "args": [r"b\na\nb\n"]},
            {"command": "sort", "input_from_task": 1},
            {"command": "uniq", "args": ["-c"], "input_from_task": 2},
        )
    )
    assert done.status == "completed"
    assert [result["stdout"] for result in done.results] == ["b\na\nb\n", "a\nb\nb\n", "      1 a\n      2 b\n"]


async def test_agx_29_ten_megabytes_pass_through_a_pipe_and_bytes_stay_what_they_are() -> None:
    size = 10 << 20
    done = await ran(
        plan(
            {"command": "head", "args": ["-c", str(size), "/dev/zero"]},
            {"command": "cat", "input_from_task": 1},
            {"command": "sh", "args": ["-c", "wc -c"], "input_from_task": 2},
            {"command": "printf", "args": [r"\377\000\n"]},
        )
    )
    assert done.status == "completed"
    assert done.results[2]["stdout"].strip() == str(size)
    last = done.results[3]
    assert (base64.b64decode(last["stdout"]), last["stdout_encoding"]) == (b"\xff\x00\n", "base64")


async def test_a_tool_that_does_not_read_its_input_is_no_failure() -> None:
    big = {"command": "head", "args": ["-c", "5000000", "/dev/zero"]}
    done = await ran(plan(big, {"command": "printf", "args": ["ok"], "input_from_task": 1}))
    assert (done.status, done.results[1]["stdout"]) == ("completed", "ok")


async def test_agx_30_a_task_that_fails_stops_the_rest() -> None:
    done = await ran(plan({"command": "printf", "args": ["a"]}, {"command": "false"}, {"command": "printf"}))
    assert done.status == "failed"
    assert [(result["task_number"], result["exit_code"]) for result in done.results] == [(1, 0), (2, 1)]
    assert done.error == "task 2 ended with exit code 1"


async def test_agx_31_a_timeout_ends_the_whole_process_group() -> None:
    seconds = long_time()
    script = f"trap '' TERM; sleep {seconds} & printf started; wait"
    done = await ran(
        plan({"command": "sh", "args": ["-c", script], "timeout_secs": 1}), limits=ProcessLimits(grace=0.2)
    )
    assert done.status == "failed"
    assert done.error.startswith("timeout: task 1")
    assert done.results[0]["stdout"] == "started"
    assert done.results[0]["timed_out"] is True
    assert not alive(seconds)


async def test_agx_31_what_leaves_its_group_is_ended_too() -> None:
    seconds = long_time()
    script = f"setsid sleep {seconds} >/dev/null 2>&1 </dev/null & exit 0"
    done = await ran(plan({"command": "sh", "args": ["-c", script]}))
    assert done.status == "completed"

    async def gone() -> bool:
        return not alive(seconds)

    await eventually(gone)


async def test_a_cancelled_plan_kills_its_tool() -> None:
    seconds = long_time()
    task = asyncio.create_task(ran(plan({"command": "sleep", "args": [seconds]})))

    async def started() -> bool:
        return alive(seconds, "sleep")

    await eventually(started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(seconds)


async def test_a_plan_that_is_cancelled_while_its_tool_starts_kills_it() -> None:
    seconds = long_time()
    task = asyncio.create_task(ran(plan({"command": "sleep", "args": [seconds]})))
    while not alive(seconds):  # noqa: ASYNC110  one turn of the loop at a time
        await asyncio.sleep(0)
    while not alive(seconds, "sleep"):  # the loop is held, so that asyncio does not know yet that the process runs
        time.sleep(0.01)  # noqa: ASYNC251
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(seconds)


@pytest.mark.parametrize("text", ["; rm -rf x", "$(touch stolen)", "a | b", "`id`", "a && b", "a\nb", "../../etc", "*"])
async def test_agx_32_no_shell_reads_an_argument(text: str) -> None:
    done = await ran(plan({"command": "printf", "args": ["%s", text, ""]}))
    assert done.results[0]["stdout"] == text
    done = await ran(plan({"command": "printf", "args": ["%s", "{{input.text}}"]}), {"text": text})
    assert done.results[0]["stdout"] == text


async def test_agx_33_a_command_that_is_not_allowed_stops_the_plan_before_it_begins(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    done = await ran(plan({"command": "touch", "args": [str(witness)]}, {"command": "rm"}))
    assert (done.status, done.results) == ("failed", ())
    assert "'rm' is not a tool of this worker" in done.error
    assert not witness.exists()
    for path in ("/bin/sh", "./sort", "../sort", ".."):
        with pytest.raises(BadPlan, match="the name of a tool, not a path"):
            plan({"command": path})


@pytest.mark.parametrize(
    ("input", "problem"),
    [
        ({}, "has no field 'text'"),
        (None, "has no field 'text'"),
        ({"text": {"a": 1}}, "neither text nor a number"),
        ({"text": "a\0b"}, "NUL"),
        ({"text": "x" * 70_000}, "more than 65536"),
    ],
)
async def test_agx_33_values_from_the_input_are_checked_and_fail_the_job_alone(input: object, problem: str) -> None:
    done = await ran(plan({"command": "printf", "args": ["{{input.text}}"]}), input)
    assert (done.status, done.results) == ("failed", ())
    assert problem in done.error


async def test_fields_of_the_input_are_put_in_as_text() -> None:
    done = await ran(
        plan({"command": "printf", "args": ["%s|", "{{input.a}}-{{ input.b }}", "{{input.c}}"]}),
        {"a": 1, "b": 2.5, "c": True},
    )
    assert done.results[0]["stdout"] == "1-2.5|true|"


async def test_agx_34_output_over_the_cap_is_cut_with_a_flag() -> None:
    done = await ran(plan({"command": "printf", "args": [f"%{REPORTED + 9}s", "é"]}))
    assert len(done.results[0]["stdout"]) == REPORTED
    assert done.results[0]["stdout_truncated"] is True
    limits = ProcessLimits(output=1_000, grace=0.1)
    flood = {"command": "yes", "timeout_secs": 1}
    done = await ran(plan(flood), limits=limits)
    assert (len(done.results[0]["stdout"]), done.results[0]["stdout_truncated"]) == (1_000, True)
    big = {"command": "head", "args": ["-c", "2000", "/dev/zero"]}
    done = await ran(plan(big, {"command": "cat", "input_from_task": 1}), limits=limits)
    assert done.error == "task 1 wrote more than 1000 bytes"


async def test_a_tool_sees_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_KEY", "secret")
    done = await ran(plan({"command": "env"}, {"command": "pwd"}))
    names = {line.partition("=")[0] for line in done.results[0]["stdout"].splitlines()}
    assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "PWD"}
    folder = Path(done.results[1]["stdout"].strip())
    assert folder.name.startswith("holdfast-agw-")
    assert not os.path.lexists(folder)  # noqa: ASYNC240  it is in memory


async def test_a_tool_has_limits() -> None:
    begun = time.monotonic()
    script = "ulimit -n; ulimit -c"
    done = await ran(plan({"command": "sh", "args": ["-c", script]}), limits=ProcessLimits(files=99))
    assert done.results[0]["stdout"].split() == ["99", "0"]
    assert done.results[0]["duration_ms"] <= (time.monotonic() - begun) * 1_000


def test_tools_are_found_when_the_worker_starts() -> None:
    assert find_tools(["sort"])["sort"].startswith("/")
    with pytest.raises(UsageError, match="no tool 'no-such-tool' on PATH"):
        find_tools(["no-such-tool"])
    with pytest.raises(UsageError, match="by its name"):
        find_tools(["/bin/sort"])


def test_a_unit_describes_itself() -> None:
    assert read_card("ocr", b'{"name": "ocr", "version": "1"}') == {"name": "ocr", "version": "1"}
    for output in (b"usage: ocr", b"[]", b"{}"):
        with pytest.raises(UsageError):
            read_card("ocr", output)


TASK = {"task_number": 1, "command": "sort"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "a plan is a JSON object"),
        ({"plan_id": "p", "tasks": []}, "1 to 100 tasks"),
        ({"plan_id": "p", "tasks": [TASK] * 101}, "1 to 100 tasks"),
        ({"plan_id": "a b", "tasks": [TASK]}, "plan_id"),
        ({"plan_id": "x" * 65, "tasks": [TASK]}, "plan_id"),
        ({"plan_id": "p", "tasks": [{**TASK, "task_number": 2}]}, "without gaps"),
        ({"plan_id": "p", "tasks": [TASK, {**TASK, "task_number": 3}]}, "2 is missing"),
        ({"plan_id": "p", "tasks": [{**TASK, "input_from_task": 1}]}, "must name an earlier task"),
        ({"plan_id": "p", "tasks": [{**TASK, "input_from_task": 2}, {**TASK, "task_number": 2}]}, "earlier task"),
        ({"plan_id": "p", "tasks": [{**TASK, "timeout_secs": 0}]}, "timeout_secs"),
        ({"plan_id": "p", "tasks": [{**TASK, "timeout_secs": 3_601}]}, "timeout_secs"),
        ({"plan_id": "p", "tasks": [{**TASK, "timeout_secs": True}]}, "timeout_secs"),
        ({"plan_id": "p", "tasks": [{**TASK, "command": ""}]}, "command"),
        ({"plan_id": "p", "tasks": [{**TASK, "command": "x" * 257}]}, "command"),
        ({"plan_id": "p", "tasks": [{**TASK, "args": "a"}]}, "args"),
        ({"plan_id": "p", "tasks": [{**TASK, "args": ["a"] * 101}]}, "args"),
        ({"plan_id": "p", "tasks": [{**TASK, "args": ["a\0"]}]}, "NUL"),
        ({"plan_id": "p", "tasks": [{**TASK, "args": ["\ud800"]}]}, "not text"),
        ({"plan_id": "p", "tasks": [{**TASK, "args": ["{{input}}"]}]}, "does not name a field"),
        ({"plan_id": "p", "tasks": [{**TASK, "shell": True}]}, "unknown field 'shell'"),
        ({"plan_id": "p", "tasks": [TASK], "plan_description": "x" * 1_025}, "plan_description"),
    ],
)
def test_agx_14_a_plan_that_is_none_is_refused(value: object, problem: str) -> None:
    with pytest.raises(BadPlan, match=problem):
        read_plan(value)


def test_a_plan_reads_what_it_writes() -> None:
    made = plan({"command": "sort", "args": ["-u"]}, {"command": "uniq", "input_from_task": 1, "timeout_secs": 5})
    assert read_plan(made.as_json()) == made
    assert made.commands == ("sort", "uniq")


@pytest.mark.parametrize(
    ("args", "input"),
    [
        (["{{input.file}}"], {"file": "-o/tmp/holdfast-was-here"}),
        (["-r", "{{ input.file }}"], {"file": "--output=/tmp/holdfast-was-here"}),
        (["{{input.a}}{{input.b}}"], {"a": "", "b": "-n"}),
        (["{{input.n}}.txt"], {"n": -1}),
    ],
)
async def test_an_input_becomes_no_option_unless_the_plan_says_so(args: list[str], input: dict[str, object]) -> None:
    task = {"command": "printf", "args": args}
    done = await ran(plan(task), input)
    assert (done.results, done.status) == ((), "failed")
    assert "an option of 'printf' in task 1: write options_from_input: true there if that is meant" in done.error
    meant = read_plan({"plan_id": "p", "tasks": [{"task_number": 1, **task, "options_from_input": True}]})
    assert meant == read_plan(meant.as_json())
    assert meant.tasks[0].arguments(input)[-1].startswith("-")


@pytest.mark.parametrize(
    "arg", ["-{{input.a}}", "--{{ input.a }}", "-d{{input.a}}", "-rn1{{input.a}}", "--out{{input.a}}"]
)
def test_letters_of_options_in_front_of_a_field_are_refused_unless_the_plan_says_so(arg: str) -> None:
    """Of `o/etc/x` behind a hyphen `sort` would make `-o/etc/x`, whatever letters the plan has in between."""
    task = {"task_number": 1, "command": "sort", "args": ["-u", arg]}
    with pytest.raises(BadPlan, match="in task 1 lets the input choose options of 'sort'"):
        read_plan({"plan_id": "p", "tasks": [task]})
    meant = read_plan({"plan_id": "p", "tasks": [{**task, "options_from_input": True}]})
    assert meant.tasks[0].arguments({"a": "1"}) == ["-u", arg.replace("{{input.a}}", "1").replace("{{ input.a }}", "1")]
    with pytest.raises(BadPlan, match="options_from_input of task 1 must be true or false"):
        read_plan({"plan_id": "p", "tasks": [{**task, "options_from_input": 1}]})


@pytest.mark.parametrize("arg", ["--delimiter={{input.a}}", "-k1,{{input.a}}", "a-{{input.a}}", "- {{input.a}}"])
def test_text_of_the_plan_before_a_field_says_what_the_argument_is(arg: str) -> None:
    made = read_plan({"plan_id": "p", "tasks": [{"task_number": 1, "command": "cut", "args": [arg]}]})
    assert made.tasks[0].arguments({"a": "-o"}) == [arg.replace("{{input.a}}", "-o")]
