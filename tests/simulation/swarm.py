"""What one seed is about: the faults that exist in it, how often, and odd constants.

A swarm of different small worlds finds more than one world that has everything: where no fault hides another, each
has room to show what it does. Every draw comes from the seed alone, and a failing seed prints them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import timedelta
from random import Random
from typing import Literal

from holdfast.settings import Settings

NEVER = math.inf

Presence = Literal["none", "steady", "flapping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Mean seconds between faults of the cluster, and chances per call of the store."""

    crash_s: float
    pause_s: float
    block_s: float
    drain_s: float
    skew_s: float
    outage_s: float
    busy_s: float
    epoch_s: float
    failover_s: float  # to a copy that lacks the last commits
    flap_s: float
    drift: float  # how much faster or slower a clock may run
    latency: float  # mean seconds to the store and back
    lost_request: float
    lost_answer: float
    stall_at_commit: float  # the process is stopped while its answer is on the way
    crash_at_commit: float
    slow: float  # the request is held up for longer than a lease
    hint_loss: float
    hint_twice: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the client does, and how its jobs behave."""

    gap_s: float  # mean pause between two actions
    most_open: int  # no more jobs than this at once
    kinds: tuple[str, ...]
    poison: float  # chance that a poisonous job takes its process along
    cancel: float  # share of the client's actions
    signal: float
    keyed: float
    burst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int
    chaos_s: float
    machines: int
    settings: Settings
    fixed_ids: bool  # machines keep their worker id, as pods do
    repeats: bool  # the driver repeats a call whose connection was lost, as on PostgreSQL
    own_lifeline: bool  # heartbeats go on while the event loop stands still, as from a thread
    ephemeral: bool  # some workers leave when there is nothing to do, and come again
    presence: Presence
    crowd: float  # among more live workers than this, one tells the others of its look
    faults: Faults
    load: Load

    def __str__(self) -> str:
        plain = Settings()
        odd = {f.name: getattr(self.settings, f.name) for f in fields(Settings)}
        shown = [f"{name}={value}" for name, value in odd.items() if value != getattr(plain, name)]
        own = [
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name not in ("settings", "faults", "load")
        ]
        faults = [f"{f.name}={getattr(self.faults, f.name):.3g}" for f in fields(Faults)]
        load = [f"{f.name}={getattr(self.load, f.name)}" for f in fields(Load)]
        return "\n".join(f"  {', '.join(part)}" for part in (own, shown, faults, load))


KINDS = (
    *("quick", "sleepy", "flaky", "snoozing", "stepping", "parent", "waiter"),
    *("chooser", "stubborn", "poison", "blocking", "special", "fragile"),
)


def draw(seed: int, *, chaos_s: float | None = None) -> Options:
    """The world of a seed; `chaos_s` shortens or stretches its troubles and changes nothing else."""
    chance = Random(f"options of {seed}")
    machines = chance.choice((2, 2, 3, 3, 4, 6))
    settings = _settings(chance)
    gap = _between(chance, 2, 30)
    options = Options(
        seed=seed,
        chaos_s=0,
        machines=machines,
        settings=settings,
        fixed_ids=chance.random() < 0.4,
        repeats=chance.random() < 0.5,
        own_lifeline=chance.random() < 0.5,
        ephemeral=chance.random() < 0.3,
        presence=chance.choice(("none", "steady", "steady", "flapping")),
        crowd=Random(f"crowd of {seed}").choice((1, 2, 5, math.inf)),
        faults=_faults(chance, settings.lease_ttl.total_seconds()),
        load=Load(
            gap_s=gap,
            most_open=chance.choice((10, 40, 80)),
            kinds=_some(chance, KINDS),
            poison=chance.choice((0.3, 1.0)),
            cancel=_often(chance, 0.2),
            signal=0.1 + _often(chance, 0.3),
            keyed=_often(chance, 0.3),
            burst=_often(chance, 0.05),
        ),
    )
    return _lasting(options, _length(options) if chaos_s is None else chaos_s)


def _settings(chance: Random) -> Settings:
    ttl = _mostly(chance, 5, 60, or_down_to=1)
    heartbeat = ttl * chance.uniform(0.2, 0.5)
    return Settings(
        lease_ttl=_time(ttl),
        heartbeat=_time(heartbeat),
        fence_margin=_time(min(1.0, ttl * 0.2) * chance.uniform(0.2, 1)),
        worker_ttl=_time(heartbeat * chance.uniform(2.1, 6)),
        lease_ceiling=_time(ttl * chance.uniform(1, 3) if chance.random() < 0.3 else 86_400),
        tick=_time(_mostly(chance, ttl / 8, ttl / 3, or_down_to=0.25)),
        poll_interval=_time(_mostly(chance, 4, 30, or_down_to=0.2)),
        sweep_interval=_time(_mostly(chance, 4, 30, or_down_to=0.5)),
        duty_ttl=_time(_mostly(chance, 10, 60, or_down_to=2)),
        cleanup_interval=_time(_between(chance, 2, 120)),
        presence_grace=_time(_mostly(chance, 3, 10, or_down_to=0.5)),
        drain_grace=_time(_between(chance, 0.5, 30)),
        rescue_backoff=_time(_between(chance, 0.5, 10)),
        key_retention=_time(chance.choice((60, 600, 7 * 86_400))),
        worker_retention=_time(chance.choice((30, 300, 86_400))),
        concurrency=chance.choice((1, 2, 5, 20)),
        batch=chance.choice((1, 3, 100)),
        prefetch=chance.choice((0, 2)),
        max_attempts=chance.choice((1, 2, 3)),
        max_rescues=chance.choice((0, 1, 2, 5)),
        store_patience=_time(chance.choice((0.5, 5))),
    )


def _faults(chance: Random, ttl: float) -> Faults:
    def every(low: float, high: float) -> float:
        return _between(chance, low, high) if chance.random() < 0.6 else NEVER

    return Faults(
        crash_s=every(30, 600),
        pause_s=every(20, 600),
        block_s=every(60, 600),
        drain_s=every(60, 900),
        skew_s=every(60, 600),
        outage_s=every(120, 1200),
        busy_s=every(120, 1200),
        epoch_s=every(200, 1200),
        failover_s=_between(chance, 100, 900) if chance.random() < 0.3 else NEVER,
        flap_s=every(20, 300),
        drift=min(0.05, 0.2 / ttl) if chance.random() < 0.7 else 0.1,
        latency=_between(chance, 0.0005, 0.05),
        lost_request=_often(chance, 0.02),
        lost_answer=_often(chance, 0.02),
        stall_at_commit=_often(chance, 0.004),
        crash_at_commit=_often(chance, 0.002),
        slow=_often(chance, 0.003),
        hint_loss=chance.choice((0.0, 0.05, 0.5, 1.0)),
        hint_twice=_often(chance, 0.1),
    )


def _length(options: Options) -> float:
    """Busy worlds are given less virtual time, so that each seed costs about the same."""
    settings = options.settings
    a_second = options.machines * (
        1 / settings.heartbeat.total_seconds()
        + 1 / min(settings.poll_interval, settings.sweep_interval).total_seconds()
        + 0.5 / settings.presence_grace.total_seconds()
        + 0.1 / settings.tick.total_seconds()
    )
    return min(3600.0, max(400.0, 9000.0 / (a_second + 8 / options.load.gap_s)))


def _lasting(options: Options, seconds: float) -> Options:
    from dataclasses import replace

    return replace(options, chaos_s=round(seconds, 3))


def _between(chance: Random, low: float, high: float) -> float:
    """Log-uniform: small and large ones alike."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def _mostly(chance: Random, low: float, high: float, *, or_down_to: float) -> float:
    """Between the two, but in one world of six below: short times are dear, for they make many events."""
    return _between(chance, *((low, high) if chance.random() < 5 / 6 else sorted((or_down_to, low))))


def _often(chance: Random, most: float) -> float:
    """Absent in four of ten worlds."""
    return chance.uniform(0, most) if chance.random() < 0.6 else 0.0


def _some(chance: Random, kinds: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(kind for kind in kinds if chance.random() < 0.6)
    return chosen or kinds


def _time(seconds: float) -> timedelta:
    return timedelta(microseconds=round(seconds * 1e6))
