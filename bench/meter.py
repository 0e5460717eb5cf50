"""What a run costs: CPU time of the whole machine and of the benchmark, time that neighbours stole, memory.

Linux keeps the counts in /proc. Elsewhere they are NaN, and the report leaves them out.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = float("nan")
PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine's counters at one moment, in seconds since it started; CPU seconds add up over its cores."""

    at: float
    busy: float
    steal: float
    total: float
    own: float = UNKNOWN  # of it, what this process and its descendants used: contenders and their servers


@dataclass(frozen=True, slots=True)
class Lap:
    """What lies between two readings."""

    seconds: float
    busy: float
    own: float
    steal: float  # share of all CPU time, 0 to 1
    others: float  # the share that was busy, but not with us


def parse(stat: str, *, at: float, own: float = UNKNOWN) -> Reading:
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user."""
    words = stat.split("\n", 1)[0].split()
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) / _TICKS for word in words[1:9])
    busy = user + nice + system + irq + softirq
    return Reading(at, busy, steal, busy + idle + iowait + steal, own)


def read() -> Reading:
    at = time.monotonic()
    try:
        stat = (PROC / "stat").read_text()
    except FileNotFoundError:
        return Reading(at, UNKNOWN, UNKNOWN, UNKNOWN)
    return parse(stat, at=at, own=cpu_seconds(family(os.getpid())))


def lap(before: Reading, after: Reading) -> Lap:
    total = after.total - before.total
    busy, own, steal = after.busy - before.busy, after.own - before.own, after.steal - before.steal
    if total == 0:  # shorter than a tick
        return Lap(after.at - before.at, busy, own, 0.0, 0.0)
    # A process counts its own ticks exactly and the machine by sampling, so the difference may dip below zero.
    others = UNKNOWN if math.isnan(own) else max(0.0, busy - own) / total
    return Lap(after.at - before.at, busy, own, steal / total, others)


def family(pid: int) -> set[int]:
    """This process and all its descendants that live now."""
    parents = {int(path.name): _stat(path)[1] for path in PROC.glob("[0-9]*")}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def cpu_seconds(pids: set[int]) -> float:
    """CPU time these processes have used so far, and their children that have ended and were waited for."""
    return sum(_stat(PROC / str(pid))[2] for pid in pids)


def resident_mb(pid: int) -> float:
    """Resident memory of one process, in MB (10^6 bytes)."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except FileNotFoundError:
        return UNKNOWN
    return pages * _PAGE / 1e6


def _stat(path: Path) -> tuple[int, int, float]:
    """Pid, parent and CPU seconds. The name may hold spaces and brackets, so count from its end."""
    try:
        text = (path / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0, 0.0
    words = text[text.rindex(")") + 2 :].split()
    return int(text.split(" ", 1)[0]), int(words[1]), sum(map(int, words[11:15])) / _TICKS
