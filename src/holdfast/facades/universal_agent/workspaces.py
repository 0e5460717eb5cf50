"""Workspaces: the folder of a session or a run, with a manifest and a log of what happened in it.

A folder that is derived from a name or given as a relative path lies inside the base; an absolute path is taken as it
is. Nothing here decides anything: the store does, and these files are for people and tools. Tools write there too,
and may put a link in the place of a file, of the workspace or of a folder above it: no link is followed at any use.
What is made here is for the user of this process alone, whatever the umask is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.errors import BadPayload
from holdfast.facades.universal_agent.protocol import BadName
from holdfast.kernel import codec

log = logging.getLogger("holdfast.universal_agent")

DEFAULT_BASE = "AGENT_RUN_WORKSPACES"
MANIFEST, ACTIVITY, PRODUCTS, ATTEMPTS = "run_manifest.json", "activity.jsonl", "work_products", "attempts"
TENANTS = ".tenants"  # no session can have this name
_OWN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a link is not followed, a pipe not awaited
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED = (errno.ELOOP, errno.ENXIO, errno.ENOENT, errno.EISDIR)  # what tools may leave in the place of the log
_LONGEST_TEXT = 512
_OTHER = re.compile(r"[^A-Za-z0-9_:@-]+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")


def is_name(name: object) -> bool:
    """Whether this may name a session, a run or a folder."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: object, what: str) -> str:
    """A name that is also the name of a folder, or `BadName`."""
    if not isinstance(name, str) or not is_name(name):
        shown = repr(name) if isinstance(name, str) and len(name) < 80 else f"{type(name).__name__}"
        raise BadName(
            f"{what} has 1 to 128 letters, digits and _ . : @ -, and begins with a letter or digit; not {shown}."
        )
    return name


def name_from(path: Path) -> str:
    """A name for what lies there: that of the folder, if it may be one, else one that shows where it came from."""
    if is_name(path.name):
        return path.name
    own = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    return f"{_OTHER.sub('_', path.name).strip('_:@-')[:119] or 'workspace'}_{own}"


def name_of_tenant(tenant: str) -> str:
    """The name of a tenant's folder, which no other tenant has."""
    own = hashlib.sha256(tenant.encode()).hexdigest()[:16]
    return f"{_OTHER.sub('_', tenant)[:80]}_{own}"


def check_text(given: object, what: str) -> str:
    """A text that is kept beside something: not empty, and not a page long."""
    try:
        return codec.check_text(given, what=what, cap=_LONGEST_TEXT)
    except BadPayload as problem:
        raise BadName(str(problem)) from None


def check_workspace(given: object) -> str | None:
    """A path as a caller gave it, or nothing; `BadName` for what no folder can have."""
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike):
        raise BadName(f"workspace_dir must be a path; got {type(given).__name__}.")
    path = os.fspath(given)
    if not isinstance(path, str) or not path.strip():
        raise BadName("workspace_dir is a path of 1 to 4,096 characters.")
    try:
        codec.check_text(path, what="workspace_dir", cap=4_096)
    except BadPayload as problem:
        raise BadName(str(problem)) from None
    if not Path(path).is_absolute() and Path(os.path.normpath(path)).parts[:1] in ((), (os.pardir,)):
        raise _outside(path, DEFAULT_BASE)
    return path


def _outside(given: str | None, base: object) -> BadName:
    return BadName(f"workspace_dir {given!r:.200} is not inside {base}; give an absolute path to have it elsewhere.")


def place(base: Path, given: str | None, name: str, *, confined: bool = False) -> Path:
    """Where a workspace lies: as given, or named `name` below the base; `BadName` when it would leave the base.

    An absolute path may leave it. One that is `confined` is the folder of its name, whatever was given: so it follows
    from the name of its session alone. `base` has no links in it. Those below it are found when the folder is opened.
    """
    own = base / check_name(name, "the name of a workspace")
    if given is None:
        return own
    wanted = Path(os.path.normpath(base / given))
    if Path(given).is_absolute():
        wanted = wanted.parent.resolve() / wanted.name
    if confined and wanted != own:
        raise BadName("workspace_dir is not the folder of its session: leave it out, and give session_id.")
    if not Path(given).is_absolute() and (wanted == base or not wanted.is_relative_to(base)):
        raise _outside(given, base)
    return wanted


def prepare(path: Path, manifest: Mapping[str, Any]) -> None:
    """Make the folder, and write its manifest unless it has one."""
    with _opened(path / PRODUCTS, make=True):
        pass
    with _opened(path) as folder:
        if not _is_there(MANIFEST, folder):
            _write(folder, MANIFEST, manifest)


def note(path: Path, at: str, event: str, facts: Mapping[str, Any]) -> None:
    """Append a line to the log, by one write. What tools have put in its place or in that of the workspace is left
    alone: a turn that has ended does not fail because of it."""
    line = json.dumps({"at": at, "event": event, **facts}, ensure_ascii=False, default=str) + "\n"
    try:
        with _opened(path) as folder:
            handle = os.open(ACTIVITY, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OWN_FILE, 0o600, dir_fd=folder)
    except (OSError, BadName) as problem:
        if isinstance(problem, OSError) and problem.errno not in _REPLACED:
            raise
        log.warning("%s or a folder above it is missing, a link or a pipe: nothing is written there", path / ACTIVITY)
        return
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            file.write(line)


def write_attempt(path: Path, number: int, facts: Mapping[str, Any]) -> None:
    """What is known of one attempt, in a folder of its own."""
    with _opened(path / ATTEMPTS / f"{number:03}", make=True) as folder:
        _write(folder, "attempt_meta.json", facts)


@contextmanager
def _opened(path: Path, *, make: bool = False) -> Iterator[int]:
    """A folder that is opened from the root on, each below the one before. So no link on the way is followed, and what
    is done in it happens there, even if a tool puts something else in its place meanwhile.

    `BadName` where a link or a file stands instead of a folder.
    """
    here = Path(path.anchor)
    folder = os.open(here, _FOLDER)
    try:
        for name in path.parts[1:]:
            here /= name
            below = _open_below(folder, name, here, make)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _open_below(folder: int, name: str, path: Path, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as problem:
        raise _no_folder(path, problem) from None
    with suppress(FileExistsError):  # another process was faster
        os.mkdir(name, 0o700, dir_fd=folder)
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as problem:
        raise _no_folder(path, problem) from None


def _no_folder(path: Path, problem: OSError) -> Exception:
    if problem.errno not in (errno.ELOOP, errno.ENOTDIR):
        return problem
    return BadName(f"{path} is a link or a file: a workspace has its own folder of that name.")


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(folder: int, name: str, content: Mapping[str, Any]) -> None:
    unfinished = f".{name}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=folder)  # of a process that was killed, or whatever else stands there
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN_FILE, 0o600, dir_fd=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as made:
        made.write(json.dumps(dict(content), indent=2, ensure_ascii=False, default=str) + "\n")
    os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
