"""Workspaces: the folder of a session or a run, with a manifest and a log of what happened in it.

A folder that is derived from a name or given as a relative path lies inside the base; an absolute path is taken as it
is. Nothing here decides anything: the store does, and these files are for people and tools. Tools write there too, so
no link that stands in a workspace is followed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import BadPayload
from holdfast.facades.universal_agent.refusals import BadName
from holdfast.kernel import codec

log = logging.getLogger("holdfast.universal_agent")

DEFAULT_BASE = "AGENT_RUN_WORKSPACES"
MANIFEST, ACTIVITY, PRODUCTS, ATTEMPTS = "run_manifest.json", "activity.jsonl", "work_products", "attempts"
TENANTS = ".tenants"  # no session can have this name
_OWN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a link is not followed, a pipe not awaited
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
        raise BadName(f"workspace_dir is a path, not {type(given).__name__}.")
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

    An absolute path may leave it, unless it is `confined`.
    """
    wanted = Path(given) if given is not None else Path(check_name(name, "the name of a workspace"))
    if wanted.is_absolute() and not confined:
        return wanted
    root = base.resolve()
    found = (root / wanted).resolve()
    if found == root or not found.is_relative_to(root):
        raise BadName("workspace_dir leaves the folder of workspaces.") if confined else _outside(given, base)
    return found


def prepare(path: Path, manifest: Mapping[str, Any]) -> None:
    """Make the folder, and write its manifest unless it has one."""
    _make_folders(path, PRODUCTS)
    if not os.path.lexists(path / MANIFEST):
        _write(path / MANIFEST, manifest)


def note(path: Path, at: str, event: str, facts: Mapping[str, Any]) -> None:
    """Append a line to the log, by one write."""
    line = json.dumps({"at": at, "event": event, **facts}, ensure_ascii=False, default=str) + "\n"
    try:
        handle = os.open(path / ACTIVITY, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OWN_FILE, 0o666)
    except OSError as problem:
        if problem.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        log.warning("%s is a link or a pipe, so nothing is written there", path / ACTIVITY)
        return
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            file.write(line)


def write_attempt(path: Path, number: int, facts: Mapping[str, Any]) -> None:
    """What is known of one attempt, in a folder of its own."""
    _write(_make_folders(path, ATTEMPTS, f"{number:03}") / "attempt_meta.json", facts)


def _make_folders(path: Path, *names: str) -> Path:
    """Folders in a workspace, one in the other; `BadName` where a link stands instead, which would lead elsewhere."""
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        path /= name
        path.mkdir(exist_ok=True)
        if path.is_symlink():
            raise BadName(f"{path} is a link: a workspace has its own folder of that name.")
    return path


def _write(file: Path, content: Mapping[str, Any]) -> None:
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # of a process that was killed, or whatever else stands there
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN_FILE, 0o666)
    with os.fdopen(handle, "w", encoding="utf-8") as made:
        made.write(json.dumps(dict(content), indent=2, ensure_ascii=False, default=str) + "\n")
    unfinished.replace(file)
