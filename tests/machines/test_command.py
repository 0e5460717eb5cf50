"""`holdfast machine`, and `python -m holdfast.machines.run`, as people call them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.agents.core import AgentsCore
from holdfast.cli.machine import command
from holdfast.clock import Ports, SystemClock
from holdfast.errors import NotFound, RunFailed, UsageError
from holdfast.machines import run
from holdfast.machines.api import Machines
from holdfast.settings import Settings
from holdfast.workers.role import Role
from tests.machines.conftest import WriteMachine
from tests.machines.pure import SEED

ASK = """
start: {action: begin, transitions: [{to: wait}]}
wait:
  wait_for: "ok/{{ input.n }}"
  output_to_context: {by: "{{ output.by }}"}
  transitions: [{to: done}]
done: {type: final, output: {by: context.by, begun: context.begun}}
"""
HOOKS = """
class Asking:
    def on_action(self, action, context):
        return {"begun": True}
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking_hooks.py").write_text(HOOKS)
    return f"sqlite:///{tmp_path}/store.db"


def typed(*words: str | Path) -> Result:
    answer = CliRunner().invoke(command, list(map(str, words)))
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer


def execution_of(url: str) -> str:
    return str(json.loads(typed("ls", "--json", "--url", url).stdout)[0]["id"])


def send(url: str, channel: str, payload: Any) -> None:
    async def sending() -> None:
        async with Holdfast(url, embedded=False) as app:
            await app.signal(channel, payload)

    asyncio.run(sending())


def test_check_says_what_is_wrong_and_exits_with_one(tmp_path: Path) -> None:
    fine = typed("check", SEED / "parallelization_checker.yml", SEED / "stale_worker_reaper.yml")
    assert fine.exit_code == 0
    assert "nothing wrong" in fine.stdout.splitlines()[-1]
    assert "warning: there is no machine 'actual_job_processor'" in fine.stdout
    bad = tmp_path / "bad.yml"
    bad.write_text(
        "spec: flatmachine\nspec_version: '0.8.3'\ndata:\n  states:\n    start: {transitions: [{to: dne}]}\n"
    )
    wrong = typed("check", bad)
    assert wrong.exit_code == 1
    assert f"{bad}:5:32: there is no state 'dne'." in wrong.stdout
    (first, *_) = json.loads(typed("check", bad, "--json").stdout)
    assert (first["line"], first["warning"]) == (5, False)
    assert typed("check", tmp_path / "none.yml").exit_code == 1


@pytest.mark.parametrize(
    ("start", "again", "said"),
    [
        ("launch: m, transitions: [{to: done}]", "", "m.yml:7:21: 'm' always starts 'm', so this would never end"),
        ("machine: [m], transitions: [{to: done}]", "", "m.yml:7:23: 'm' always starts 'm', so"),
        (
            "launch: again, transitions: [{to: done}]",
            "launch: m, transitions: [{to: done}]",
            "m.yml:7:21: 'm' always starts 'again', which starts 'm', so this would never end",
        ),
        ("transitions: [{to: next, condition: input.n}, {to: next}]", "", "m.yml:8:20: 'm' always starts 'm'"),
        ("transitions: [{to: next, condition: input.n}, {to: done}]", "", None),
        ("launch: again, transitions: [{to: done}]", "on_error: done, launch: m, transitions: [{to: done}]", None),
        ('foreach: "{{ input.all }}", launch: m, transitions: [{to: done}]', "", None),
        ("wait_for: go, transitions: [{to: next}]", "", None),
    ],
)
def test_check_finds_machines_that_always_start_themselves(
    write: WriteMachine, start: str, again: str, said: str | None
) -> None:
    end = "\ndone: {type: final}"
    write("again", f"start: {{{again or 'type: final'}}}{end if again else ''}")
    following = "\nnext: {launch: m, transitions: [{to: done}]}" if "to: next" in start else ""
    answer = typed("check", write("m", f"start: {{{start}}}{following}{end}"))
    assert (said or "nothing wrong") in answer.stdout
    assert answer.exit_code == (0 if said is None else 1)


FAILING = """
start: {action: first, transitions: [{to: wrong}]}
wrong:
  action: second
  output_to_context: {n: "{{ output.n / input.by }}"}
  transitions: [{to: done, condition: "context.n > 0"}]
done: {type: final}
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"by": 0}', "division by zero (in state 'wrong', FILE:8:5)"),
        ('{"by": -1}', "has a condition that holds. (in state 'wrong', FILE:8:5)"),
        ('{"by": "x"}', "(in state 'wrong', FILE:8:5)"),
        ('{"fail": "first"}', "the ink is out (in state 'start', FILE:7:5)"),
    ],
)
def test_an_error_at_run_time_names_the_file_the_line_and_the_state(
    url: str, write: WriteMachine, tmp_path: Path, given: str, said: str
) -> None:
    file = write("m", FAILING, data='context: {fails: "{{ input.fail | default(0) }}"}')
    (tmp_path / "failing_hooks.py").write_text(
        "def acts(action, context):\n    if action == context['fails']:\n        raise OSError('the ink is out')\n"
        "    return {'n': 1}\n"
    )
    with pytest.raises(RunFailed) as problem:
        typed("run", file, "--input", given, "--hooks", "failing_hooks:acts", "--url", url)
    assert said.replace("FILE", str(file)) in str(problem.value)
    error = json.loads(typed("show", execution_of(url), "--url", url, "--json").stdout)["error"]
    line, state = (7, "start") if "first" in given else (8, "wrong")
    assert f"File \"{file}\", line {line}, in state '{state}' of machine 'm'" in error["trace"]
    assert ("in acts" in error["trace"]) == ("first" in given), "the line of the hooks that raised it"


def test_an_error_in_a_machine_that_another_runs_names_both(url: str, write: WriteMachine) -> None:
    below = write("below", 'start: {type: final, output: {n: "{{ 1 / input.n }}"}}')
    above = write("above", "start: {machine: below, input: {n: 0}, transitions: [{to: done}]}\ndone: {type: final}")
    with pytest.raises(RunFailed, match=r"division by zero \(in state 'start', .*above.yml:7:5\)") as problem:
        typed("run", above, "--url", url)
    (trace,) = problem.value.__notes__
    assert trace.index(f'File "{above}", line 7') < trace.index(f'File "{below}", line 7')


def test_an_execution_is_found_by_the_name_that_it_was_started_with(url: str, write: WriteMachine) -> None:
    file, given = write("ask", ASK), ("--hooks", "asking_hooks:Asking", "--url", url)
    for name in ("storm", "dead"):  # one of them could be the beginning of an id
        typed("run", file, "--input", '{"n": 1}', "--execution-id", name, *given)
        assert json.loads(typed("show", name, "--url", url, "--json").stdout)["at"] == "wait"
        assert "class s1 current" in typed("draw", name, "--mermaid", "--url", url).stdout
    send(url, "ok/1", {"by": "ann"})
    send(url, "ok/1", {"by": "ben"})
    assert {json.loads(typed("resume", name, *given).stdout)["by"] for name in ("storm", "dead")} == {"ann", "ben"}
    with pytest.raises(NotFound, match="there is no execution calm in this database"):
        typed("show", "calm", "--url", url)


def test_an_execution_waits_is_shown_drawn_and_resumed(url: str, write: WriteMachine) -> None:
    file = write("ask", ASK)
    given = ("--hooks", "asking_hooks:Asking", "--url", url)
    begun = typed("run", file, "--input", '{"n": 1}', "--execution-id", "one", *given)
    assert begun.exit_code == run.WAITS
    assert "waits for a signal on channel 'ok/1'" in begun.stderr
    id = execution_of(url)
    listed = typed("ls", "--url", url, "--machine", "ask", "--state", "waiting").stdout
    assert [word in listed for word in (id, "ask", "waiting", "wait")] == [True] * 4
    shown = json.loads(typed("show", id, "--url", url, "--json").stdout)
    assert (shown["at"], shown["context"], shown["input"]) == ("wait", {"begun": True}, {"n": 1})
    assert shown["events"][-1]["name"] == "waiting"
    assert "executed" in typed("show", id, "--url", url).stdout
    assert [each["gate"] for each in shown["why"]] == ["signal"]
    assert shown["why"][0]["sentence"] in typed("show", id, "--url", url).stdout
    assert "(the current state)" in typed("draw", id, "--url", url).stdout
    assert "class s1 current" in typed("draw", id, "--mermaid", "--url", url).stdout
    send(url, "ok/1", {"by": "ann"})
    done = typed("resume", id, *given)
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"by": "ann", "begun": True})
    again = typed("resume", id, *given)
    assert json.loads(again.stdout) == {"by": "ann", "begun": True}


def test_an_execution_continues_with_the_new_file_only_when_asked_to(url: str, write: WriteMachine) -> None:
    file = write("ask", ASK)
    given = ("--hooks", "asking_hooks:Asking", "--url", url)
    typed("run", file, "--input", '{"n": 2}', *given)
    id = execution_of(url)
    write("ask", ASK.replace("begun: context.begun", "version: 2"))
    send(url, "ok/2", {"by": "bob"})
    answer = typed("resume", id, "--new", file, *given)
    assert json.loads(answer.stdout) == {"by": "bob", "version": 2}
    assert "continues with" in answer.stderr
    with pytest.raises(UsageError, match="was resumed already"):
        typed("resume", id, *given)


@pytest.mark.parametrize("child", ["", "timeout: 3600, "])
def test_an_execution_leaves_when_it_and_all_that_it_runs_wait(url: str, write: WriteMachine, child: str) -> None:
    write(
        "asks", f"start: {{{child}wait_for: ok, transitions: [{{to: done}}]}}\ndone: {{type: final, output: {{a: 1}}}}"
    )
    file = write(
        "above",
        """
        start: {machine: asks, output_to_context: {a: "{{ output.a }}"}, transitions: [{to: done}]}
        done: {type: final, output: {a: context.a}}
        """,
    )
    words = ["--machine", str(file), "--execution-id", "one", "--url", url]
    assert run.main(words) == run.WAITS
    assert run.main(["--machine", str(file.with_name("asks.yml")), "--url", url]) == run.WAITS
    send(url, "ok", None)
    send(url, "ok", None)
    assert run.main(words) == 0


def test_an_execution_that_times_out_soon_is_awaited(
    url: str, write: WriteMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(
        "brief",
        """
        start: {timeout: 0.05, wait_for: ok, on_error: late, transitions: [{to: late}]}
        late: {type: final, output: {error: context.last_error_type}}
        """,
    )
    assert run.main(["--machine", str(file), "--url", url]) == 0
    assert json.loads(capsys.readouterr().out) == {"error": "TimeoutError"}


def test_sigterm_stops_a_process_that_waits_for_another_one(url: str, write: WriteMachine) -> None:
    """No worker here plays the queue of the execution, so the process looks again and again."""
    file, looks = write("idle", "start: {type: final}"), list[float]()

    class Clock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            if seconds == run._LOOK:
                looks.append(seconds)
                assert len(looks) < 3, "the signal was for nothing"
                os.kill(os.getpid(), signal.SIGTERM)
            await super().sleep(seconds)

    async def playing() -> int:
        core = AgentsCore(Settings.from_environment().override({"url": url}), Ports(Clock()))
        try:
            execution = await Machines(core).declare(file, None).enqueue({})
            return await run.play_here(core, execution, role=Role(until="empty", queues=("another",)))
        finally:
            await core.close()

    assert asyncio.run(playing()) == run.WAITS
    assert len(looks) == 1


def test_draw_writes_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "m.svg"
    assert typed("draw", SEED / "job_worker.yml", "--output", file).exit_code == 0
    assert file.read_text().startswith("<svg")


def test_the_module_runs_one_machine(
    url: str, write: WriteMachine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write("echo", "start: {type: final, output: {n: input.n}}")
    words = ["--machine", str(file), "--input", '{"n": 3}', "--execution-id", "a", "--url", url]
    assert run.main(words) == 0
    assert run.main(words) == 0  # the stored output, without running
    assert capsys.readouterr().out == '{"n": 3}\n' * 2
    child = write("child", 'start: {type: final, output: {of: "{{ context.machine.parent_execution_id }}"}}')
    assert run.main(["--machine", str(child), "--parent-id", "above", "--url", url]) == 0
    assert capsys.readouterr().out == '{"of": "above"}\n'
    assert run.main([*words[:3], '{"n": 4}', *words[4:]]) == 2
    assert run.main(["--machine", str(tmp_path / "none.yml")]) == 2
    assert run.main(["--machine", str(file), "--input", "[]"]) == 2
    bad = write("bad", "start: {foreach: 3, machine: echo, transitions: [{to: done}]}\ndone: {type: final}")
    bad.write_text(bad.read_text().replace("foreach: 3", 'foreach: "{{ 3 }}"'))
    assert run.main(["--machine", str(bad), "--url", url]) == 1


def test_an_execution_that_a_worker_plays_is_not_resumed_with_another_file(url: str, write: WriteMachine) -> None:
    """While its action runs, `resume --new` changes nothing: it is refused, and the execution ends as it began."""
    file, said = write("m", ACTS), list[str]()

    def hooks(action: str, context: dict[str, Any]) -> dict[str, Any]:
        write("m", ACTS.replace("n: context.n", "n: 2"))
        with pytest.raises(UsageError, match="Nothing was changed") as refused:
            typed(
                "resume",
                context["machine"]["execution_id"],
                "--new",
                file,
                "--hooks",
                "asking_hooks:Asking",
                "--url",
                url,
            )
        said.append(str(refused.value))
        return {"n": 1}

    app = Holdfast(url)
    execution = app.machine(file, hooks=hooks).enqueue_sync()
    app.sync(app.ensure_worker())
    assert app.sync(execution.result()) == {"n": 1}
    assert (len(said), len(app.sync(app.jobs.list(kind="machine:m")))) == (1, 1)
    app.sync.close()


ACTS = "start: {action: a, transitions: [{to: done}]}\ndone: {type: final, output: {n: context.n}}"


def test_a_signal_goes_to_the_channel_on_which_an_execution_waits(url: str, write: WriteMachine) -> None:
    file, given = write("ask", ASK), ("--hooks", "asking_hooks:Asking", "--url", url)
    typed("run", file, "--input", '{"n": 7}', "--execution-id", "storm", *given)
    with pytest.raises(UsageError, match="--payload is JSON"):
        typed("signal", "storm", "--payload", "ann", "--url", url)
    sent = typed("signal", "storm", "--payload", '{"by": "ann"}', "--url", url).stdout
    assert sent.endswith("has a signal on channel ok/7\n")
    with pytest.raises(UsageError, match="does not wait for a signal: "):  # it has one
        typed("signal", "storm", "--url", url)
    assert json.loads(typed("resume", "storm", *given).stdout)["by"] == "ann"
    with pytest.raises(UsageError, match=r"does not wait for a signal: .*succeeded"):
        typed("signal", "storm", "--url", url)
