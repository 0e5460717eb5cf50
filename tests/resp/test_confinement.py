"""What tools may use: limits that hold from the first moment, and bubblewrap, the real one.

bubblewrap is installed if it is missing and we may install it. Where it cannot be had, or where the system forbids user
namespaces, a line says that it was not tested; a worker that should use it refuses to start there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.agw import processes
from holdfast.agw.processes import ProcessLimits, ToolCall, ToolExit, run_tool
from holdfast.clock import SystemClock
from tests.support.commands import environment, holdfast, python


@pytest.fixture(scope="session")
def bwrap(request: pytest.FixtureRequest) -> str | None:
    """Where it is. None, and a line that says so, where it cannot be used."""
    if shutil.which("bwrap") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        for words in (["update"], ["install", "-y", "--no-install-recommends", "bubblewrap"]):
            subprocess.run(["apt-get", "-q", *words], check=False, capture_output=True)
    path = shutil.which("bwrap")
    if path is None:
        tell(request, "it is not installed, and cannot be installed here")
        return None
    command = [path, "--ro-bind", "/", "/", "--unshare-all", "true"]
    tried = subprocess.run(command, check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        tell(request, tried.stderr.strip())
        return None
    return path


def tell(request: pytest.FixtureRequest, why: str) -> None:
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    line = f"\nthe sandbox of bubblewrap was NOT tested: {why}"
    print(line, file=sys.__stderr__) if reporter is None else reporter.write_line(line)


async def ran(*command: str, limits: ProcessLimits | None = None) -> ToolExit:
    path = shutil.which(command[0])
    assert path is not None
    with TemporaryDirectory(prefix="holdfast-agw-") as folder:
        call = ToolCall(path, command[1:], None, Path(folder), 60)
        return await run_tool(call, limits or ProcessLimits(), SystemClock())


def limits_in(proc: str) -> dict[str, str]:
    return {line[:26].strip(): line[26:].split()[0] for line in proc.splitlines()[1:]}


@pytest.mark.parametrize("starter", ["prlimit", "python", "bwrap"])
async def test_limits_hold_from_the_first_moment(
    starter: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that is done in a millisecond had them too."""
    if starter == "python":
        monkeypatch.setattr(processes, "_prlimit", lambda: None)
    sandbox = request.getfixturevalue("bwrap") if starter == "bwrap" else None
    if starter == "bwrap" and sandbox is None:
        return
    limits = ProcessLimits(memory=900 << 20, files=99, file_size=12_345, sandbox=sandbox)
    done = await ran("cat", "/proc/self/limits", limits=limits)
    assert done.exit_code == 0, done.stderr
    assert limits_in(done.stdout.decode()) == {
        **limits_in(done.stdout.decode()),
        "Max open files": "99",
        "Max file size": "12345",
        "Max address space": str(900 << 20),
        "Max cpu time": "61",
        "Max core file size": "0",
    }


async def test_a_tool_in_bubblewrap_has_no_network_and_one_folder_to_write_to(bwrap: str | None) -> None:
    if bwrap is None:
        return
    limits = ProcessLimits(sandbox=bwrap)
    devices = (await ran("cat", "/proc/net/dev", limits=limits)).stdout.decode().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    assert (await ran("touch", "made", limits=limits)).exit_code == 0
    assert b"Read-only file system" in (await ran("touch", "/etc/holdfast-was-here", limits=limits)).stderr
    with TemporaryDirectory(prefix="holdfast-other-", dir="/tmp") as other:
        assert (await ran("ls", "-d", other)).exit_code == 0
        assert (await ran("ls", "-d", other, limits=limits)).exit_code != 0
    assert (await ran("ls", "-A", "/run", limits=limits)).stdout == b""


async def test_nothing_outlives_its_task_in_bubblewrap(bwrap: str | None) -> None:
    if bwrap is None:
        return
    done = await ran("sh", "-c", "setsid sleep 86399 >/dev/null 2>&1 & exit 0", limits=ProcessLimits(sandbox=bwrap))
    assert done.exit_code == 0, done.stderr
    assert not running("sleep", "86399")


def running(*command: str) -> list[str]:
    """The processes with this command line."""
    listed = subprocess.run(["ps", "-A", "-o", "args="], check=True, capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if line.split() == [*command]]


@pytest.mark.long
def test_a_worker_does_not_start_without_the_sandbox_that_it_should_have(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sort", "true"):
        (tools / name).symlink_to(str(shutil.which(name)))
    env = environment(PATH=str(tools), HOLDFAST_AGW_KEY="00" * 32)
    words = ("agw", "--tools", "sort", "--sandbox", "bwrap")
    assert "there is no bwrap on PATH" in holdfast(*words, env=env).refused(2)
    forbidden = tools / "bwrap"
    forbidden.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    forbidden.chmod(0o755)
    said = holdfast(*words, env=env).refused(2)
    assert said == "--sandbox bwrap does not work on this system: bwrap: No permissions to create new namespace."


def test_a_unit_shows_its_card_when_the_worker_starts(tmp_path: Path) -> None:
    """What it prints for --describe; a program that prints none is no unit."""
    unit = tmp_path / "agx-ocr"
    unit.write_text('#!/bin/sh\n[ "$1" = --describe ] && echo "no card"\n')
    unit.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}", HOLDFAST_AGW_KEY="00" * 32)
    said = holdfast("agw", "--tools", "sort", "--units", "agx-ocr", env=env).refused(2)
    assert said == "agx-ocr --describe does not print JSON, so it is not an agentic unit."


async def test_a_tool_in_bubblewrap_sees_no_home_no_data_and_no_secrets(bwrap: str | None, tmp_path: Path) -> None:
    if bwrap is None:
        return
    limits = ProcessLimits(sandbox=bwrap)
    here = Path(__file__)
    text = (await ran("cat", str(here))).stdout
    for hidden in (
        here,
        Path.home(),
        tmp_path,
        Path("/etc/shadow"),
        Path("/etc/hostname"),
        Path("/var"),
        Path("/root"),
    ):
        assert (await ran("ls", "-d", str(hidden), limits=limits)).exit_code != 0, hidden
    listed = (await ran("ls", "/proc", limits=limits)).stdout.decode().split()
    assert str(os.getpid()) not in listed
    assert len([each for each in listed if each.isdigit()]) < 4
    assert (await ran("touch", "/made", limits=limits)).exit_code != 0
    shown = ProcessLimits(sandbox=bwrap, shown=(str(here),))
    assert (await ran("cat", str(here), limits=shown)).stdout == text != b""
    assert (await ran("touch", str(here), limits=shown)).exit_code != 0


async def test_a_tool_that_is_no_program_of_the_system_runs_in_bubblewrap_alone(
    bwrap: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bwrap is None:
        return
    (tmp_path / "greet").write_text("#!/bin/sh\necho hello; ls -A ${0%/*}\n")
    (tmp_path / "greet").chmod(0o755)
    (tmp_path / "secret").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = await ran("greet", limits=ProcessLimits(sandbox=bwrap))
    assert done.stdout == b"hello\ngreet\n", done.stderr


@pytest.mark.skipif("sys.platform != 'linux'", reason="a process of Linux")
def test_no_process_of_the_user_reads_the_environment_of_the_worker() -> None:
    """The mark is what the kernel asks for; root reads everything."""
    program = (
        "import ctypes\nfrom holdfast.agw.processes import hide_from_tools\n"
        "print(ctypes.CDLL(None).prctl(3))\nhide_from_tools()\nprint(ctypes.CDLL(None).prctl(3))"
    )
    assert python("-c", program) == (0, "1\n0\n", "")


@pytest.mark.long
def test_a_worker_without_a_sandbox_says_so_in_one_line(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sort", "true"):
        (tools / name).symlink_to(str(shutil.which(name)))
    key = tmp_path / "key"
    key.write_text("00" * 32 + "\n")
    env = environment(PATH=str(tools))
    words = ("agw", "--tools", "sort", "--key-file", str(key), "--connect", "127.0.0.1:1", "--units", "nothing")
    lines = [line for line in holdfast(*words, env=env).err.splitlines() if "sandbox" in line]
    assert lines == []  # a unit that is not there is told first
    said = holdfast(*words[:-2], "--units", "true", env=env).err
    (line,) = [line for line in said.splitlines() if "sandbox" in line]
    assert line.endswith(
        "tools have no sandbox, and can read and change what this user can: --sandbox bwrap needs bubblewrap, and "
        "there is no bwrap on PATH"
    )
    assert "sandbox" not in holdfast(*words[:-2], "--units", "true", "--sandbox", "none", env=env).err


def test_a_key_is_read_from_a_file(tmp_path: Path) -> None:
    empty = tmp_path / "key"
    empty.write_text("\n")
    said = holdfast("agw", "--tools", "sort", "--key-file", str(empty), env=environment()).refused(2)
    assert said == f"{empty} is empty; it holds the worker's key."


@pytest.mark.long
def test_a_worker_without_a_sandbox_and_without_a_list_has_no_tool_that_runs_others(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("awk", "find", "grep", "sed", "sh", "sort", "tar", "true", "uniq", "wc", "xargs"):
        (tools / name).symlink_to(str(shutil.which(name)))
    env = environment(PATH=str(tools), HOLDFAST_AGW_KEY="00" * 32)
    said = holdfast("agw", "--connect", "127.0.0.1:1", "--units", "true", env=env).err
    (line,) = [line for line in said.splitlines() if "without --tools" in line]
    assert line.endswith("without --tools plans may use grep, wc")
    assert "tools have no sandbox" in said
