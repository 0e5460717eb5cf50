"""The commands and the examples as people run them: processes of their own, stock clients and nothing of ours in them.

The clients for Node and Go are installed at the versions that `examples/resp` pins. Where they cannot be had, a line
says that they were not tested.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.environments import NotRun
from bench.redis import find_redis
from tests.conftest import Place
from tests.support.commands import environment, holdfast, program, start
from tests.support.redis import free_port
from tests.support.stock_clients import CHECKS, EXAMPLES, with_go, with_node
from tests.support.warm import WarmProcess

PLAN = {
    "plan_id": "shout",
    "tasks": [
        {"task_number": 1, "command": "printf", "args": ["%s", "{{input.word}}"]},
        {"task_number": 2, "command": "tr", "args": ["a-z", "A-Z"], "input_from_task": 1},
    ],
}


LONG = pytest.mark.long  # another language has to be installed, and built
WORKERS = ["worker.py", "worker.sh", pytest.param("worker.mjs", marks=LONG), pytest.param("worker.go", marks=LONG)]
TOOLS = ["tool.py", pytest.param("tool.mjs", marks=LONG)]
PIPED_NODE = ["OK", "v", None, 1, {"a": "1"}, 1, ["m", "1.5"], "WRONGTYPE", 2, ["y", "x"]]
PIPED_GO = ["v", True, {"a": "1"}, [{"Score": 1.5, "Member": "m"}], ["y", "x"]]


@contextmanager
def process(*command: str, **env: str) -> Iterator[subprocess.Popen[str] | WarmProcess]:
    first, *words = command
    whole = environment(**env)
    with (
        start(*words, env=whole, stdout=subprocess.PIPE, text=True)
        if first == sys.executable
        else subprocess.Popen(command, env=whole, stdout=subprocess.PIPE, text=True)
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@contextmanager
def gateway(url: str) -> Iterator[int]:
    port = free_port()
    with process(sys.executable, "-m", "holdfast", "resp", "--bind", f"127.0.0.1:{port}", "--url", url) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("serving Redis clients on 127.0.0.1")
        yield port
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 0


Started = Callable[[Path], list[str] | None]


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Started:
    """How to run a program that uses a stock client. None, and a line that says why, where that cannot be."""

    def find(program: Path) -> list[str] | None:
        try:
            return command_of(program)
        except NotRun as why:
            tell(request, program.name, str(why))
            return None

    return find


def command_of(program: Path) -> list[str]:
    match program.suffix:
        case ".mjs":
            return with_node(program)
        case ".go":
            return with_go(program)
        case ".sh":
            if shutil.which("redis-cli") is None or shutil.which("jq") is None:
                raise NotRun("it needs redis-cli and jq")
            return ["sh", str(program)]
        case _:
            return [sys.executable, str(program)]


def tell(request: pytest.FixtureRequest, name: str, why: str) -> None:
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    line = f"\n{name} was NOT tested: {why}"
    print(line, file=sys.__stderr__) if reporter is None else reporter.write_line(line)


@pytest.mark.parametrize("example", WORKERS)
def test_a_stock_client_works(place: Place, started: Started, example: str) -> None:
    command = started(EXAMPLES / example)
    if command is None:
        return
    key = holdfast("resp", "keys", "add", "w1", "--url", place.url, "--json").json["key"]
    admin = holdfast("resp", "keys", "add", "admin", "--url", place.url, "--json").json["key"]
    with gateway(place.url) as port, ExitStack() as stack:
        env = {"HOST": "127.0.0.1", "PORT": str(port), "WORKER": "w1", "KEY": key, "REDISCLI_AUTH": key}
        stack.enter_context(process(*command, **env))
        ask = Asker(port, admin)
        id = ask("JOB.ENQUEUE", "mail", "send", '{"to": "ada"}')
        while json.loads(ask("JOB.STATUS", id))["status"] != "completed":
            pass
        result = json.loads(ask("JOB.STATUS", id))["result"]
        assert result["sent to"] == "ada"
        listed = holdfast("resp", "keys", "ls", "--url", place.url, "--json").json
        assert {each["name"] for each in listed} == {"admin", "w1"}
        assert key not in json.dumps(listed)


@pytest.mark.long
@pytest.mark.parametrize("example", TOOLS)
def test_an_agents_tool_is_served_by_a_stock_client(place: Place, started: Started, example: str) -> None:
    command = started(EXAMPLES / example)
    if command is None:
        return
    key = holdfast("resp", "keys", "add", "w1", "--url", place.url, "--json").json["key"]
    with gateway(place.url) as port, ExitStack() as stack:
        env = {"HOST": "127.0.0.1", "PORT": str(port), "WORKER": "w1", "KEY": key}
        stack.enter_context(process(*command, **env))
        said = program(str(EXAMPLES / "agent.py"), env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    assert json.loads(said.out)["sky"] == "rain"


@pytest.mark.long
@pytest.mark.parametrize("program", ["check.mjs", "check.go"])
def test_stock_clients_read_what_is_replied(place: Place, started: Started, program: str) -> None:
    """Pipelines, transactions and pops, as the clients show them: what RESP3 has forms of its own for, too."""
    command = started(CHECKS / program)
    if command is None:
        return
    key = holdfast("resp", "keys", "add", "w1", "--url", place.url, "--json").json["key"]
    with gateway(place.url) as port:
        env = environment(HOST="127.0.0.1", PORT=str(port), WORKER="w1", KEY=key)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["popped"][0] == ["queue:in", "a"]
    assert said["popped"][1] == "b"
    assert said["popped"][2] in (None, True)
    assert said["removed"] == 1
    if program == "check.mjs":
        piped = [each if not str(each).startswith("WRONGTYPE") else "WRONGTYPE" for each in said["piped"]]
        assert piped == PIPED_NODE
        assert said["multi"] == ["OK", "1"]
    else:
        assert said["registered"] == "<nil>"
        assert said["piped"] == PIPED_GO
        assert said["multi"] == ["1", "<nil>"]


class Asker:
    """redis-py, as a program without a worker uses it."""

    def __init__(self, port: int, key: str) -> None:
        import redis

        self._client = redis.Redis("127.0.0.1", port, password=key, decode_responses=True)

    def __call__(self, *words: str) -> str:
        return str(self._client.execute_command(*words))  # type: ignore[no-untyped-call]


@pytest.mark.long
def test_an_action_is_submitted_run_and_shown(place: Place, tmp_path: Path) -> None:
    plan, inputs = tmp_path / "plan.json", tmp_path / "inputs.jsonl"
    plan.write_text(json.dumps(PLAN))
    inputs.write_text('{"word": "one"}\n{"word": "two; rm -rf /"}\n')
    unit = tmp_path / "agx-ocr"
    unit.write_text('#!/bin/sh\necho \'{"name": "agx-ocr", "description": "Reads text in pictures"}\'\n')
    unit.chmod(0o755)
    key = holdfast("resp", "keys", "add", "unix", "--url", place.url).out.strip()
    assert len(key) == 64
    with gateway(place.url) as port:
        command = [sys.executable, "-m", "holdfast", "agw", "--connect", f"127.0.0.1:{port}", "--id", "unix"]
        told = {"HOLDFAST_AGW_KEY": key, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        with process(*command, "--tools", "printf,tr", "--units", "agx-ocr", "--max-jobs", "2", **told) as worker:
            submit = ("action", "submit", str(plan), str(inputs), "--id", "a1", "--wait", "--url", place.url)
            results = holdfast(*submit, "--json").json
            assert [job["task_results"][-1]["stdout"] for job in results] == ["ONE", "TWO; RM -RF /"]
            assert '"worker_id": "unix"' in Asker(port, key)("CAPABILITY.SEARCH", "pictures")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0
    shown = holdfast("action", "show", "a1", "--url", place.url)
    assert "ONE" in shown.out
    assert holdfast("plan", "show", "shout", "--url", place.url).json["jobs"] == 2
    assert [each["plan_id"] for each in holdfast("plan", "ls", "--url", place.url, "--json").json] == ["shout"]
    assert holdfast("plan", "rm", "shout", "--url", place.url).lines == ["plan shout is removed"]
    assert "there is no plan 'shout'" in holdfast("plan", "show", "shout", "--url", place.url).refused(2)


def test_what_cannot_work_is_refused_at_once(place: Place, tmp_path: Path) -> None:
    url = ("--url", place.url)
    assert "there is no key yet" in holdfast("resp", *url).refused(2)
    assert "can be reached from other machines" in holdfast("resp", "--bind", "0.0.0.0:0", *url).refused(2)
    assert "HOLDFAST_AGW_KEY is not set" in holdfast("agw", "--tools", "sort").refused(2)
    nothing, told = tmp_path / "nothing", {**os.environ, "HOLDFAST_AGW_KEY": "0" * 64}
    nothing.write_text("no certificate")
    assert "cannot be used" in holdfast("agw", "--ca", str(nothing), env=told).refused(2)
    assert "takes neither" in holdfast("agw", "--unix", str(tmp_path / "s"), "--tls", env=told).refused(2)
    workers = tmp_path / "workers.toml"
    workers.write_text('[workers]\n"w1" = "short"\n')
    assert "64 hex digits" in holdfast("resp", "--workers-file", str(workers), *url).refused(2)
    assert "no valid key of 'nobody'" in holdfast("resp", "keys", "revoke", "nobody", *url).refused(2)


def test_the_server_for_comparison_is_found() -> None:
    assert find_redis().exists()
