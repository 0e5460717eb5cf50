"""The keeper of one tool: a program between the worker and the tool, which ends when nothing of the tool is left.

On Linux it adopts whatever the tool leaves behind, in any group, session or environment: so what belongs to a task is
what the keeper has as descendants, however many tasks there are. It ends as the tool did. It knows the standard library
alone, so that it starts fast.

TERM is passed to the tool's process group. QUIT, and the death of the worker, kill everything at once.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

TYPE_CHECKING = False  # typing and pathlib would take longer than all the rest
if TYPE_CHECKING:
    from typing import NoReturn

_HEARD = {signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT}
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
_CANNOT_RUN = 126
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(worker: int, command: list[str]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    _control(_PR_SET_PDEATHSIG, signal.SIGQUIT)
    if os.getppid() != worker:  # it died before this could be heard
        os._exit(_CANNOT_RUN)
    keeper = os.getpid()
    tool = os.fork()
    if tool == 0:
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it was killed before this could be heard
            os._exit(_CANNOT_RUN)
        _become(command)
    _let_go_of_pipes()
    status = _watch(tool)
    _kill_what_is_left(tool)
    _end_like(os.waitstatus_to_exitcode(status))


def _control(option: int, value: int) -> None:
    """prctl, where there is one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))


def _become(command: list[str]) -> NoReturn:
    """The tool, in a session and a process group of its own, with signals as any program finds them."""
    os.setsid()
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
    try:
        os.execv(command[0], command)
    except OSError as problem:
        os.write(2, f"{command[0]} cannot be run: {problem.strerror}\n".encode())
    os._exit(_CANNOT_RUN)


def _let_go_of_pipes() -> None:
    """The tool alone holds them: the worker sees when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def _watch(tool: int) -> int:
    """Until the tool has ended: how it did."""
    while True:
        status = _reap(tool)
        if status is not None:
            return status
        heard = signal.sigwait(_HEARD)
        if heard == signal.SIGTERM:
            _signal_tool(tool, signal.SIGTERM)
        elif heard == signal.SIGQUIT:
            _signal_tool(tool, signal.SIGKILL)


def _reap(tool: int) -> int | None:
    """Collect who has ended; how the tool did, if it has."""
    found: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found = status if pid == tool else found


def _kill_what_is_left(tool: int) -> None:
    """Stop everybody, so that nobody starts another, then kill them; again, until nobody is left to wait for."""
    if sys.platform != "linux":  # where those who left the group are not known
        _signal_group(tool, signal.SIGKILL)
    while _is_somebody_left(os.WNOHANG):
        stopped: set[int] = set()
        while running := _descendants() - stopped:
            _signal_each(running, signal.SIGSTOP)
            stopped |= running
        _signal_each(stopped, signal.SIGKILL)
        _is_somebody_left(0)


def _is_somebody_left(options: int) -> bool:
    """Whether there was a child to wait for."""
    try:
        os.waitpid(-1, options)
    except ChildProcessError:
        return False
    return True


def _descendants() -> set[int]:
    """All who descend from this process now."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208  see above
        if name.isdigit() and (parent := _parent_of(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    asked = [os.getpid()]
    while asked:
        for child in children.get(asked.pop(), ()):
            if child not in found:
                found.add(child)
                asked.append(child)
    return found


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  see above
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:  # it has ended
        return None


def _signal_tool(tool: int, number: int) -> None:
    """Its group, or itself if it does not lead one yet. It has not been reaped, so nobody else has its number."""
    if not _signal_group(tool, number):
        _signal_each({tool}, number)


def _signal_group(leader: int, number: int) -> bool:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_each(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # it has ended, or has become another user's
            continue


def _end_like(code: int) -> NoReturn:
    """With the tool's exit code, or by the signal that ended it."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:  # which nobody can set
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else _CANNOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
