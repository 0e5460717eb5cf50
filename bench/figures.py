"""Figures: what was measured, of whom, how often; and how two of them compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.meter import UNKNOWN, Lap

DISTURBED = 0.10  # a run in which others had more of all CPU time than this is thrown away


@dataclass(frozen=True, slots=True)
class Subject:
    """One measured thing. `key` names it in the targets, `title` on the page."""

    key: str
    title: str
    unit: str
    more_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """One run's answer. CPU is in microseconds per job, of the whole machine and of the contender with its store.

    `steal` and `others` are shares of all CPU time: taken by the machine's neighbours, and by other processes on it.
    """

    value: float
    cpu_us: float = UNKNOWN
    own_us: float = UNKNOWN
    steal: float = UNKNOWN
    others: float = UNKNOWN

    @classmethod
    def of(cls, value: float, lap: Lap, *, jobs: int = 0) -> Sample:
        """Without `jobs` there is nothing to divide the CPU by."""
        if not jobs:
            return cls(value, steal=lap.steal, others=lap.others)
        return cls(value, lap.busy * 1e6 / jobs, lap.own * 1e6 / jobs, lap.steal, lap.others)

    @property
    def disturbance(self) -> float:
        """The share of all CPU time that others had, as far as it is known."""
        return sum(share for share in (self.steal, self.others) if not math.isnan(share))


@dataclass(slots=True)
class Figure:
    """All runs of one contender at one subject, in the order of the rounds."""

    subject: Subject
    contender: str
    samples: list[Sample] = field(default_factory=list)
    note: str = ""

    @property
    def values(self) -> list[float]:
        return [sample.value for sample in self.samples]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def cpu_us(self) -> float:
        return median([sample.cpu_us for sample in self.samples])

    @property
    def own_us(self) -> float:
        return median([sample.own_us for sample in self.samples])

    @property
    def steal(self) -> float:
        """The worst of the rounds."""
        return worst([sample.steal for sample in self.samples])

    @property
    def others(self) -> float:
        """The worst of the rounds."""
        return worst([sample.others for sample in self.samples])

    @property
    def disturbed(self) -> int:
        """In how many of the rounds others had too much of the machine, whenever it was tried."""
        return sum(sample.disturbance > DISTURBED for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Absence:
    """Who was not measured at what, and why."""

    work: str
    contender: str
    reason: str


@dataclass(frozen=True, slots=True)
class Thrown:
    """Which run was thrown away, because others had this share of the machine."""

    work: str
    contender: str
    share: float


class Figures:
    """Everything measured in one run, in the order it was first measured."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, str], Figure] = {}

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._figures.values())

    def add(self, subject: Subject, contender: str, sample: Sample, *, note: str = "") -> None:
        figure = self._figures.setdefault((subject.key, contender), Figure(subject, contender))
        figure.samples.append(sample)
        figure.note = note or figure.note

    def find(self, key: str, contender: str) -> Figure | None:
        return self._figures.get((key, contender))

    def of(self, key: str) -> list[Figure]:
        return [figure for figure in self if figure.subject.key == key]

    def subjects(self) -> list[Subject]:
        return list(dict.fromkeys(figure.subject for figure in self))


class Noted(Figures):
    """The same figures; notes which of them somebody finds here."""

    def __init__(self, figures: Figures) -> None:
        super().__init__()
        self._figures = figures._figures
        self.found: list[Figure] = []

    def find(self, key: str, contender: str) -> Figure | None:
        figure = super().find(key, contender)
        self.found += [figure] if figure else []
        return figure


def median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else UNKNOWN


def worst(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=UNKNOWN)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    if not values:
        return UNKNOWN
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def ratio(one: Figure, other: Figure) -> float:
    """How many times `other` is `one`: the median over the rounds, each compared with itself.

    Neighbours on the machine change from round to round, so a round is the fairest unit. Without one partner for
    each round the medians are compared. Of nothing, or of a delay below zero, there is no multiple.
    """
    pairs = zip(one.values, other.values, strict=False)
    if len(one.samples) != len(other.samples):
        pairs = zip([one.median], [other.median], strict=True)
    return median([mine / theirs for mine, theirs in pairs if theirs > 0])
