"""The commands and the examples as people run them: processes of their own, stock clients and nothing of ours in them.

Clients for Node and Go are tried where they are installed: HOLDFAST_TEST_NODE names a folder with node_modules/ioredis,
HOLDFAST_TEST_GO a folder with a module that has go-redis.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.redis import find_redis
from tests.conftest import Place
from tests.support.commands import environment, holdfast, python
from tests.support.redis import free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "resp"
PLAN = {
    "plan_id": "shout",
    "tasks": [
        {"task_number": 1, "command": "printf", "args": ["%s", "{{input.word}}"]},
        {"task_number": 2, "command": "tr", "args": ["a-z", "A-Z"], "input_from_task": 1},
    ],
}


def tools() -> list[str]:
    """The examples that serve a tool, and whose clients are installed."""
    return ["tool.py", *(["tool.mjs"] if "worker.mjs" in clients() else [])]


def clients() -> list[str]:
    """The examples whose clients are installed."""
    found = ["worker.py"]
    if shutil.which("redis-cli") and shutil.which("jq"):
        found.append("worker.sh")
    if os.environ.get("HOLDFAST_TEST_NODE") and shutil.which("node"):
        found.append("worker.mjs")
    if os.environ.get("HOLDFAST_TEST_GO") and shutil.which("go"):
        found.append("worker.go")
    return found


@contextmanager
def process(*command: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    whole = {**environment(), "PYTHONUNBUFFERED": "1", **env}
    running = subprocess.Popen(command, env=whole, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@contextmanager
def gateway(url: str) -> Iterator[int]:
    port = free_port()
    with process(sys.executable, "-m", "holdfast", "resp", "--bind", f"127.0.0.1:{port}", "--url", url) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("serving Redis clients on 127.0.0.1")
        yield port
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 0


def started(example: str, folder: Path) -> list[str]:
    match example:
        case "worker.py" | "tool.py":
            return [sys.executable, str(EXAMPLES / example)]
        case "worker.sh":
            return ["sh", str(EXAMPLES / example)]
        case "worker.mjs" | "tool.mjs":
            modules = Path(os.environ["HOLDFAST_TEST_NODE"])
            return ["node", str(shutil.copy(EXAMPLES / example, modules / example))]
        case _:
            module = Path(os.environ["HOLDFAST_TEST_GO"])
            shutil.copy(EXAMPLES / example, module)
            program = str(folder / "worker")
            subprocess.run(["go", "build", "-o", program, "worker.go"], cwd=module, check=True)
            return [program]


@pytest.mark.sample(1)
@pytest.mark.parametrize("example", clients())
def test_a_stock_client_works(place: Place, tmp_path: Path, example: str) -> None:
    key = holdfast("resp", "keys", "add", "w1", "--url", place.url, "--json").json["key"]
    admin = holdfast("resp", "keys", "add", "admin", "--url", place.url, "--json").json["key"]
    with gateway(place.url) as port, ExitStack() as stack:
        env = {"HOST": "127.0.0.1", "PORT": str(port), "WORKER": "w1", "KEY": key, "REDISCLI_AUTH": key}
        stack.enter_context(process(*started(example, tmp_path), **env))
        ask = Asker(port, admin)
        id = ask("JOB.ENQUEUE", "mail", "send", '{"to": "ada"}')
        while json.loads(ask("JOB.STATUS", id))["status"] != "completed":
            pass
        result = json.loads(ask("JOB.STATUS", id))["result"]
        assert result["sent to"] == "ada"
        listed = holdfast("resp", "keys", "ls", "--url", place.url, "--json").json
        assert {each["name"] for each in listed} == {"admin", "w1"}
        assert key not in json.dumps(listed)


@pytest.mark.sample(1)
@pytest.mark.parametrize("example", tools())
def test_an_agents_tool_is_served_by_a_stock_client(place: Place, tmp_path: Path, example: str) -> None:
    key = holdfast("resp", "keys", "add", "w1", "--url", place.url, "--json").json["key"]
    with gateway(place.url) as port, ExitStack() as stack:
        env = {"HOST": "127.0.0.1", "PORT": str(port), "WORKER": "w1", "KEY": key}
        stack.enter_context(process(*started(example, tmp_path), **env))
        said = python(str(EXAMPLES / "agent.py"), env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    assert json.loads(said.out)["sky"] == "rain"


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
    workers = tmp_path / "workers.toml"
    workers.write_text('[workers]\n"w1" = "short"\n')
    assert "64 hex digits" in holdfast("resp", "--workers-file", str(workers), *url).refused(2)
    assert "no valid key of 'nobody'" in holdfast("resp", "keys", "revoke", "nobody", *url).refused(2)


def test_the_server_for_comparison_is_found() -> None:
    assert find_redis().exists()
