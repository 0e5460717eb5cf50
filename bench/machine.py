"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from bench.meter import PROC

_WRITES = 200


def describe(postgres: dict[str, str], folder: Path) -> list[tuple[str, str]]:
    """Name and value of everything a reader needs to judge the figures. `folder`: where the data was."""
    names = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
    durable = ", ".join(f"{name}={postgres[name]}" for name in names)
    return [
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("processor", f"{_field('cpuinfo', 'model name') or platform.machine()}, {os.cpu_count()} cores"),
        ("memory", _memory()),
        ("system", f"{platform.system()} {platform.release()}"),
        ("disk", f"{filesystem(folder)}, {sync_us(folder):.0f} µs for a write of 8 kB and fdatasync"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("PostgreSQL", f"{postgres['server_version']}, {durable}"),
    ]


def sync_us(folder: Path) -> float:
    """The median time of a small durable write, in microseconds: what each commit has to wait for."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(_WRITES):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), bytes(8192), 0)
            (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file.fileno())
            times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times)


def filesystem(folder: Path) -> str:
    """The type of the file system that holds `folder`: that of the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in (PROC / "mounts").read_text().splitlines()]
    except FileNotFoundError:
        return "unknown file system"
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "unknown file system"


def _memory() -> str:
    kilobytes = _field("meminfo", "MemTotal").split()
    return f"{int(kilobytes[0]) / 1024**2:.0f} GiB" if kilobytes else "unknown"


def _field(file: str, name: str) -> str:
    try:
        lines = (PROC / file).read_text().splitlines()
    except FileNotFoundError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
