"""The results of a run as a file, so that the page can be made again: when the notes change, for example."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.figures import Absence, Figures, Sample, Subject, Thrown
from bench.meter import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What was measured, by whom, and on what; works and contenders by their names."""

    scale: str
    machine: Sequence[tuple[str, str]]
    works: Sequence[str]
    contenders: Sequence[str]
    figures: Figures
    absences: Sequence[Absence]
    thrown: Sequence[Thrown]

    def joined(self, part: Results) -> Results:
        """This run, with another run's figures in place of its own, for all works of that one."""
        figures = Figures()
        newer = {figure.subject.key for figure in part.figures}
        for figure in (*(each for each in self.figures if each.subject.key not in newer), *part.figures):
            for sample in figure.samples:
                figures.add(figure.subject, figure.contender, sample, note=figure.note)
        again = (f"{', '.join(part.works)}: measured again", dict(part.machine)["date"])
        return replace(
            self,
            machine=[*(fact for fact in self.machine if fact[0] != again[0]), again],
            works=list(dict.fromkeys([*self.works, *part.works])),
            figures=figures,
            absences=[*(each for each in self.absences if each.work not in part.works), *part.absences],
            thrown=[*(each for each in self.thrown if each.work not in part.works), *part.thrown],
        )

    def save(self, path: Path) -> None:
        figures = [
            {
                "subject": asdict(figure.subject),
                "contender": figure.contender,
                "note": figure.note,
                "samples": [_written(sample) for sample in figure.samples],
            }
            for figure in self.figures
        ]
        facts = {"scale": self.scale, "machine": self.machine, "works": self.works, "contenders": self.contenders}
        rest = {name: [asdict(each) for each in getattr(self, name)] for name in ("absences", "thrown")}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**facts, "figures": figures, **rest}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """What `save` wrote."""
        told = json.loads(path.read_text())
        figures = Figures()
        for figure in told["figures"]:
            for sample in figure["samples"]:
                figures.add(Subject(**figure["subject"]), figure["contender"], _read(sample), note=figure["note"])
        return cls(
            scale=told["scale"],
            machine=[(name, text) for name, text in told["machine"]],
            works=told["works"],
            contenders=told["contenders"],
            figures=figures,
            absences=[Absence(**absence) for absence in told["absences"]],
            thrown=[Thrown(**thrown) for thrown in told["thrown"]],
        )


def _written(sample: Sample) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in asdict(sample).items()}


def _read(sample: dict[str, float | None]) -> Sample:
    return Sample(**{name: UNKNOWN if value is None else value for name, value in sample.items()})
