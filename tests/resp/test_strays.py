"""What tools leave behind: nothing of a task outlives it, whatever it forked, and other tasks do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.resp.test_plans_run import alive, long_time, plan, ran
from tests.support.apps import PATIENCE, eventually

AWAY = "setsid env -i sh -c ': > begun; exec sleep {0}' >/dev/null 2>&1 </dev/null &"
UNTIL_BEGUN = "while ! [ -e begun ]; do sleep 0.01; done"


def left_behind(seconds: str, then: str) -> dict[str, object]:
    """A task that leaves somebody in a session of its own, with an empty environment, and whose parent has ended."""
    return {"command": "sh", "args": ["-c", f"({AWAY.format(seconds)}) ; {then}"]}


def zombies() -> set[int]:
    """Those who ended and whose parent we are."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if (state, int(parent)) == (b"Z", os.getpid()):
                found.add(int(folder.name))
    return found


async def begun(*commands: str) -> None:
    async def all_run() -> bool:
        return all(alive(each) for each in commands)

    await eventually(all_run)


async def test_agx_31_what_forks_away_with_an_empty_environment_ends_with_its_task() -> None:
    seconds = long_time()
    done = await ran(plan(left_behind(seconds, UNTIL_BEGUN)))
    assert done.status == "completed", done
    assert not alive(seconds)
    assert not zombies()


async def test_what_one_task_leaves_behind_is_not_confused_with_what_another_does() -> None:
    away, itself, of_another = long_time(), long_time(), long_time()
    other = asyncio.create_task(ran(plan(left_behind(away, f"exec sleep {itself}"))))
    await begun(away, itself)
    done = await ran(plan(left_behind(of_another, UNTIL_BEGUN)))
    assert done.status == "completed", done
    assert (alive(of_another), alive(away), alive(itself)) == (False, True, True)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert (alive(away), alive(itself)) == (False, False)
    assert not zombies()


@pytest.mark.parametrize("how", ["sleep {0} &", "(setsid sleep {0} &) ;"])
async def test_somebody_in_the_background_who_holds_the_output_does_not_hold_the_task(how: str) -> None:
    seconds = long_time()
    script = f"{how.format(seconds)} printf done"
    done = await ran(plan({"command": "sh", "args": ["-c", script], "timeout_secs": int(PATIENCE)}))
    assert (done.status, done.results[0]["stdout"]) == ("completed", "done")
    assert "timed_out" not in done.results[0]
    assert not alive(seconds)


@pytest.mark.parametrize("name", ["KILL", "SEGV", "TERM"])
async def test_the_signal_that_ended_a_tool_is_its_exit_code(name: str) -> None:
    done = await ran(plan({"command": "sh", "args": ["-c", f"kill -{name} $$"]}))
    assert done.results[0]["exit_code"] == -signal.Signals[f"SIG{name}"]


def ignored(status: str) -> set[int]:
    """The signals that a process ignores, but for those that the C library keeps for itself."""
    (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
    return {number for number in map(int, signal.valid_signals()) if mask >> (number - 1) & 1}


def own_status() -> str:
    return Path("/proc/self/status").read_text()


async def test_a_tool_finds_signals_as_any_program_does() -> None:
    """Python ignores a broken pipe; its tools do not. What this process was started with, such as by nohup, stays."""
    done = await ran(plan({"command": "sh", "args": ["-c", "cat /proc/self/status"]}))
    told, ours = done.results[0]["stdout"], ignored(own_status())
    assert signal.SIGPIPE in ours
    assert ignored(told) == ours - {signal.SIGPIPE, signal.SIGXFSZ}
    assert int(told.partition("SigBlk:")[2].split()[0], 16) == 0
