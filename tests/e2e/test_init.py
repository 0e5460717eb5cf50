"""`holdfast init` and `holdfast dev`: from an empty folder to a job that runs, and again when the code changes."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from tests.support.commands import PATIENCE, environment, holdfast, python


class Dev:
    """A `holdfast dev` and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._said.put(line)

    def says(self, text: str) -> str:
        while text not in (line := self._said.get(timeout=PATIENCE)):
            pass
        return line


@contextmanager
def developing(folder: Path, *words: str) -> Iterator[Dev]:
    command = [sys.executable, "-u", "-m", "holdfast", "dev", *words]
    env = environment(PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    dev = Dev(process)
    try:
        yield dev
    finally:
        dev.end()


@pytest.mark.long
def test_what_is_printed_really_works(tmp_path: Path) -> None:
    said = holdfast("init", cwd=tmp_path)
    dev_command, *commands = [shlex.split(line)[1:] for line in said.lines if line.startswith("  holdfast ")]
    assert dev_command == ["dev"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.py", "pyproject.toml", "test_jobs.py"]
    with developing(tmp_path) as dev:
        dev.says("ready")
        enqueued = python("jobs.py", cwd=tmp_path).lines
        dev.says("hello, world")
        assert [holdfast(*words, cwd=tmp_path).lines for words in commands] == [['"hello, world"'], ["sunny in Oslo"]]
    jobs = holdfast("jobs", "ls", "--kind", "jobs.greet", "--json", cwd=tmp_path).json
    assert enqueued == [f"enqueued {jobs[-1]['id']}"]
    (schedule,) = holdfast("schedules", "ls", "--json", cwd=tmp_path).json
    assert schedule["name"] == "jobs.tick"


@pytest.mark.long
def test_the_test_that_is_written_passes_and_can_fail(tmp_path: Path) -> None:
    holdfast("init", "shop", cwd=tmp_path)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore")
    passed = python(*words, cwd=tmp_path)
    assert passed.code == 0, passed
    assert "1 passed" in passed.out
    program = tmp_path / "shop.py"
    program.write_text(program.read_text().replace("hello, ", "goodbye, "))
    assert "assert 'goodbye, world' == 'hello, world'" in python(*words, cwd=tmp_path).out


def test_a_name_may_be_given(tmp_path: Path) -> None:
    assert holdfast("init", "shop.py", cwd=tmp_path).lines[0] == "wrote shop.py: a job, a schedule and an agent"
    assert 'app = "shop:hf"' in (tmp_path / "pyproject.toml").read_text()


def test_it_may_be_repeated_and_adds_only_what_is_missing(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "mine"')
    holdfast("init", cwd=tmp_path)
    assert project.read_text().startswith('[project]\nname = "mine"\n\n[tool.holdfast]\napp = "jobs:hf"')
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len([line for line in holdfast("init", cwd=tmp_path).lines if "was not changed" in line]) == 3
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    program = tmp_path / "jobs.py"
    program.write_text(program.read_text().replace("hello", "good morning"))
    (tmp_path / "test_jobs.py").unlink()
    assert "wrote test_jobs.py: a test that needs no worker" in holdfast("init", cwd=tmp_path).lines


@pytest.mark.parametrize("text", ['[tool.holdfast]\napp = "other:hf"\n', "tool = {}\n", "[tool\n"])
def test_a_pyproject_that_names_another_app_or_takes_no_table_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert "  holdfast dev --app jobs:hf" in holdfast("init", cwd=tmp_path).lines
    assert (tmp_path / "pyproject.toml").read_text() == text


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("mine")
    line = holdfast("init", cwd=tmp_path).refused(2)
    assert line == "jobs.py is another program, and was not changed; give another name: `holdfast init NAME`."
    assert (tmp_path / "jobs.py").read_text() == "mine"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["my-jobs", "class", "7", "../jobs"])
def test_a_name_that_cannot_be_imported(tmp_path: Path, name: str) -> None:
    assert "is not a name that Python can import" in holdfast("init", name, cwd=tmp_path).refused(2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["holdfast", "json", "pytest"])
def test_a_name_that_would_hide_another_module(tmp_path: Path, name: str) -> None:
    line = holdfast("init", name, cwd=tmp_path).refused(2)
    assert line == f"{name}.py would hide the module {name} that Python has already; give another name."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_worker_starts_again_when_the_code_changes(tmp_path: Path) -> None:
    holdfast("init", cwd=tmp_path)
    file = tmp_path / "jobs.py"
    with developing(tmp_path, "jobs:hf", "--log-level", "error") as dev:
        dev.says("runs jobs:hf")
        file.write_text(file.read_text().replace("hello", "goodbye"))
        assert dev.says("changed") == "jobs.py changed\n"
        dev.says("runs jobs:hf")
        python("jobs.py", cwd=tmp_path)
        dev.says("goodbye, world")
        dev.process.send_signal(signal.SIGINT)
        dev.says("stopped")
        assert dev.process.wait(PATIENCE) == 0
    assert holdfast("workers", "ls", cwd=tmp_path).lines == ["no workers"], "it drained"


@pytest.mark.long
def test_a_program_that_is_broken_is_waited_for(tmp_path: Path) -> None:
    holdfast("init", cwd=tmp_path)
    file = tmp_path / "jobs.py"
    whole = file.read_text()
    file.write_text("def broken(:\n")
    with developing(tmp_path, "jobs:hf") as dev:
        dev.says("jobs cannot be imported: SyntaxError")
        dev.says("the worker ended with 2; it restarts when the code changes")
        file.write_text(whole)
        dev.says("ready")
