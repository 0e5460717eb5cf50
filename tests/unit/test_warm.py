"""A process that was warmed up is like one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.warm import WarmProcess, begin

PROGRAM = """
import atexit, json, os, sys, threading
threading.Thread(target=lambda: print("thread")).start()
atexit.register(print, "exit")
leads = os.getsid(0) == os.getpid()
print(json.dumps([os.getcwd(), sys.argv[1:], sys.path[:2], os.environ["COLOUR"], leads, __name__]))
print(sys.stdin.read(), file=sys.stderr)
if sys.argv[1] != "stay":
    sys.exit(int(sys.argv[1]))
sys.stdout.flush()
threading.Event().wait()
"""


def begun(folder: Path, *words: str) -> WarmProcess:
    file = folder / "program.py"
    file.write_text(PROGRAM)
    pipe = subprocess.PIPE
    process = begin(
        *(str(file), *words),
        preload=["json"],
        cwd=folder.parent,
        env={"COLOUR": "red", "PYTHONPATH": "/nowhere"},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write("typed")
    process.stdin.close()
    return process


def test_it_has_its_own_place_words_files_and_end(tmp_path: Path) -> None:
    with begun(tmp_path, "7", "more") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = process.stdout.read().splitlines()
        assert process.stderr.read() == "typed\n"
        assert process.wait() == 7
    (told,) = [json.loads(line) for line in lines if line.startswith("[")]
    assert told == [str(tmp_path.parent), ["7", "more"], [str(tmp_path), "/nowhere"], "red", True, "__main__"]
    assert sorted(line for line in lines if not line.startswith("[")) == ["exit", "thread"]


def test_others_run_beside_it_and_a_signal_ends_it_alone(tmp_path: Path) -> None:
    with begun(tmp_path, "stay") as first, begun(tmp_path, "stay") as second:
        assert first.pid != second.pid
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.01)
        first.kill()
        assert (first.wait(), second.poll()) == (-signal.SIGKILL, None)
        second.terminate()
        assert second.wait() == -signal.SIGTERM
        second.kill()  # which is too late


def test_a_module_and_what_it_raises(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise LookupError('no such page')\n")
    process = begin("-m", "broken", preload=["json"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.read().rstrip().endswith("LookupError: no such page")
    with process:
        assert process.wait() == 1
    assert "broken" not in sys.modules
