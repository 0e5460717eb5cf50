"""`holdfast init` and `holdfast dev`: from an empty folder to a job that runs, and again when the code changes."""

from __future__ import annotations

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


def test_what_is_printed_really_works(tmp_path: Path) -> None:
    said = holdfast("init", cwd=tmp_path)
    assert said.lines[-2:] == ["  holdfast dev jobs:hf", "  python jobs.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.py"]
    with developing(tmp_path, "jobs:hf") as dev:
        dev.says("registered as")
        enqueued = python("jobs.py", cwd=tmp_path).lines
        dev.says("hello, world")
    (job,) = holdfast("jobs", "ls", "--kind", "jobs.greet", "--json", cwd=tmp_path).json
    assert enqueued == [f"enqueued {job['id']}"]
    (schedule,) = holdfast("schedules", "ls", "--json", cwd=tmp_path).json
    assert schedule["name"] == "jobs.tick"


def test_a_name_may_be_given(tmp_path: Path) -> None:
    assert holdfast("init", "shop.py", cwd=tmp_path).lines[-1] == "  python shop.py"
    assert "holdfast dev shop:hf" in (tmp_path / "shop.py").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("mine")
    line = holdfast("init", cwd=tmp_path).refused(2)
    assert line == "jobs.py is there already and stays as it is; give another name: `holdfast init NAME`."
    assert (tmp_path / "jobs.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["my-jobs", "class", "7", "../jobs"])
def test_a_name_that_cannot_be_imported(tmp_path: Path, name: str) -> None:
    assert "is not a name that Python could import" in holdfast("init", name, cwd=tmp_path).refused(2)


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


def test_a_program_that_is_broken_is_waited_for(tmp_path: Path) -> None:
    holdfast("init", cwd=tmp_path)
    file = tmp_path / "jobs.py"
    whole = file.read_text()
    file.write_text("def broken(:\n")
    with developing(tmp_path, "jobs:hf") as dev:
        dev.says("jobs cannot be imported: SyntaxError")
        dev.says("the worker ended with 2; it starts again when the code changes")
        file.write_text(whole)
        dev.says("registered as")
