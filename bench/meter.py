"""What a run costs: CPU time of the whole machine and of what is measured, time that neighbours stole, memory.

Linux keeps the counts in /proc. Elsewhere they are NaN, and the report leaves them out.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

UNKNOWN = float("nan")
PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOKS = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine's counters at one moment, in seconds since it started; CPU seconds add up over its cores."""

    at: float
    busy: float
    steal: float
    total: float
    own: float = UNKNOWN  # of it, what our descendants used: contenders and their servers
    watching: float = 0.0  # of it, what this process used itself, which is no part of what it measures


@dataclass(frozen=True, slots=True)
class Lap:
    """What lies between two readings."""

    seconds: float
    busy: float
    own: float
    steal: float  # share of all CPU time, 0 to 1
    others: float  # the share that was busy, but not with us


class Process(NamedTuple):
    parent: int
    used: float  # CPU seconds of its own
    reaped: float  # those of its children that have ended and were waited for


def parse(stat: str, *, at: float, own: float = UNKNOWN, watching: float = 0.0) -> Reading:
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user."""
    words = stat.split("\n", 1)[0].split()
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) / _TICKS for word in words[1:9])
    busy = user + nice + system + irq + softirq
    return Reading(at, busy, steal, busy + idle + iowait + steal, own, watching)


def read() -> Reading:
    at = time.monotonic()
    try:
        stat = (PROC / "stat").read_text()
    except FileNotFoundError:
        return Reading(at, UNKNOWN, UNKNOWN, UNKNOWN)
    own, watching = used_below(os.getpid())
    return parse(stat, at=at, own=own, watching=watching)


def lap(before: Reading, after: Reading) -> Lap:
    total = after.total - before.total
    busy, own, steal = after.busy - before.busy, after.own - before.own, after.steal - before.steal
    ours = max(0.0, own + after.watching - before.watching)  # ticks of processes that end are rounded down
    if total == 0:  # shorter than a tick
        return Lap(after.at - before.at, busy, own, 0.0, 0.0)
    # A process counts its own ticks exactly and the machine by sampling, so the difference may dip below zero.
    others = UNKNOWN if math.isnan(own) else max(0.0, busy - ours) / total
    return Lap(after.at - before.at, busy, own, steal / total, others)


def family(pid: int) -> set[int]:
    """This process and all its descendants that live now."""
    return _family(_processes(), pid)


def used_below(pid: int) -> tuple[float, float]:
    """CPU seconds of all descendants of a process, those that have ended included, and of the process itself.

    A process that ends hands its seconds to its parent. Whoever reads the parent first and the child too late misses
    them: half of a short run, where a server's process ends with its client. So all are read until no parent has got
    anything since.
    """
    seen = _processes()
    for _ in range(_LOOKS):
        again = _processes()
        if _handed_over(seen, pid) == _handed_over(again, pid):
            break
        seen = again
    below = sum(seen[each].used + seen[each].reaped for each in _family(seen, pid) - {pid} if each in seen)
    mine = seen.get(pid, Process(0, 0.0, 0.0))
    return below + mine.reaped, mine.used


def cpu_seconds(pids: set[int]) -> float:
    """CPU time these processes have used so far, and their children that have ended and were waited for."""
    found = (_process(PROC / str(pid)) for pid in pids)
    return sum(each.used + each.reaped for each in found if each)


def own_cpu_seconds(pids: set[int]) -> dict[int, float]:
    """CPU time that each of these has used so far, without its children: all that one ever used counts with its end."""
    used: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = (PROC / str(pid) / "stat").read_text()
            used[pid] = sum(map(int, text[text.rindex(")") + 2 :].split()[11:13])) / _TICKS
    return used


def resident_mb(pid: int) -> float:
    """Resident memory of one process, in MB (10^6 bytes)."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except FileNotFoundError:
        return UNKNOWN
    return pages * _PAGE / 1e6


def _processes() -> dict[int, Process]:
    return {int(path.name): found for path in PROC.glob("[0-9]*") if (found := _process(path))}


def _handed_over(processes: Mapping[int, Process], pid: int) -> dict[int, float]:
    return {each: processes[each].reaped for each in _family(processes, pid) if each in processes}


def _family(processes: Mapping[int, Process], pid: int) -> set[int]:
    found = {pid}
    while more := {child for child, each in processes.items() if each.parent in found} - found:
        found |= more
    return found


def _process(path: Path) -> Process | None:
    """None when it has ended. The name may hold spaces and brackets, so count from its end."""
    try:
        text = (path / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = text[text.rindex(")") + 2 :].split()
    ticks = [int(word) / _TICKS for word in words[11:15]]
    return Process(int(words[1]), ticks[0] + ticks[1], ticks[2] + ticks[3])
