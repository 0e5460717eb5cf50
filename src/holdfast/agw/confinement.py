"""Confinement: what a tool may use, and the command that starts it so.

The limits are taken by a program that then becomes the tool, so they hold from its first moment, for it and for what it
starts. In bubblewrap it has no network, sees the system's programs and libraries and nothing else, and can write to one
folder only.
"""

from __future__ import annotations

import ctypes
import json
import resource
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# What programs need of /etc; the rest of it may have secrets.
_ETC = (
    *("alternatives", "ca-certificates", "fonts", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.conf"),
    *("localtime", "magic", "mime.types", "nsswitch.conf", "passwd", "pki/tls/certs", "ssl/certs", "timezone"),
)
_PR_SET_DUMPABLE = 4
_BECOME = """
import json, os, resource, sys
for kind, most in json.loads(sys.argv[1]):
    resource.setrlimit(kind, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one tool may use."""

    output: int = 16 << 20  # bytes of each stream that are kept
    grace: float = 5.0  # seconds between TERM and KILL
    memory: int | None = 2 << 30  # bytes of address space
    files: int = 256  # open at once
    file_size: int = 1 << 30  # bytes of one file
    sandbox: str | None = None  # the path of bubblewrap
    shown: tuple[str, ...] = ()  # what a tool may read in it, besides the system's programs


def confined(path: str, args: Sequence[str], folder: Path, timeout: float, limits: ProcessLimits) -> list[str]:
    """The command that starts a tool within its limits, and inside of bubblewrap if there is one."""
    box = [] if limits.sandbox is None else [*_box(limits.sandbox, path, str(folder), limits.shown), "--"]
    return _limited([*box, path, *args], limits, timeout)


def _limited(command: Sequence[str], limits: ProcessLimits, timeout: float) -> list[str]:
    wanted = {"core": 0, "nofile": limits.files, "fsize": limits.file_size, "cpu": int(timeout) + 1}
    if limits.memory is not None and sys.platform != "darwin":  # which has no such limit
        wanted["as"] = limits.memory
    kinds = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in wanted}
    allowed = {name: _allowed(kinds[name], most) for name, most in wanted.items()}
    if (program := _prlimit()) is not None:
        return [program, *(f"--{name}={most}:{most}" for name, most in allowed.items()), "--", *command]
    told = json.dumps([(kinds[name], most) for name, most in allowed.items()])
    return [sys.executable, "-I", "-S", "-c", _BECOME, told, *command]


def _allowed(kind: int, most: int) -> int:
    """No more than this process may use itself: nobody can raise that."""
    _, hard = resource.getrlimit(kind)
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


@cache
def _prlimit() -> str | None:
    """The program of util-linux, which starts faster than an interpreter."""
    return shutil.which("prlimit", path=PATH)


def _box(sandbox: str, path: str, folder: str, shown: Sequence[str]) -> list[str]:
    """bubblewrap, in which only what is named here can be seen: no home, no data and no secrets, for root too."""
    seen: list[str] = []
    for each in _PROGRAMS:
        if Path(each).is_symlink():
            seen += ["--symlink", str(Path(each).readlink()), each]
        elif Path(each).is_dir():
            seen += ["--ro-bind", each, each]
    for name in _ETC:
        seen += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    seen += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for each in sorted({path, str(Path(path).resolve()), *shown}):
        if not each.startswith(tuple(f"{known}/" for known in _PROGRAMS)):
            seen += ["--ro-bind", each, each]
    seen += ["--bind", folder, folder, "--remount-ro", "/", "--chdir", folder]
    return [sandbox, *seen, "--unshare-all", "--die-with-parent", "--new-session"]


def hide_from_tools() -> None:
    """Let no other process of this user read the memory and the environment of this one, as far as the system can.

    A process of root reads both, also if root runs this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, *(ctypes.c_ulong(0) for _ in range(4)))
