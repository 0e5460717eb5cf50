"""What one worker is for: who it is, what it takes, and when it leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import UsageError
from holdfast.validation import did_you_mean
from holdfast.workers.definitions import LACKS

Until = Literal["stopped", "empty", "one"]


SYSTEM_QUEUE = "system"  # of jobs that the runtime gives itself
SYSTEM_KIND = "system:"  # how their kinds begin


@dataclass(frozen=True, slots=True)
class Role:
    """Who this worker is and what it takes; everything else comes from the settings.

    `only` leaves out some of what this worker could do: with `{"tag": ["gpu=yes"]}` it takes no capability `tag:…` but
    `tag:gpu=yes`, and with `{"tag": []}` none of that sort at all.
    """

    name: str = ""
    id: str = ""
    queues: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    until: Until = "stopped"
    only: Mapping[str, Collection[str]] | None = None
    pool: str = ""  # whose place it takes; such a worker is replaced, so it does not come back when it was given up

    if not TYPE_CHECKING:

        def __new__(cls, *args, **options):
            for name in options.keys() - set(cls.__slots__):
                advice = did_you_mean(name, cls.__slots__)
                if not advice and isinstance(options[name], Collection):
                    only = {name.removesuffix("s"): _names(options[name])}
                    advice = f" To serve only some capabilities of one sort, name them: only={only}."
                raise UsageError(f"a role has no option {name!r}; its options are {', '.join(cls.__slots__)}.{advice}")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        given: object = self.only  # what a program without a type checker gave
        if given is not None and not isinstance(given, Mapping):
            only = {"tag": _names(given)}
            raise UsageError(f"a role takes the names that it serves by their sort: only={only}.")
        for sort, names in (self.only or {}).items():
            if isinstance(names, str):  # a text has its letters for names
                raise UsageError(f"a role takes only a list of names: only={{{sort!r}: [{names!r}]}}.")

    @property
    def served_queues(self) -> tuple[str, ...] | None:
        """The queues it takes from: the runtime's own too, whichever were chosen."""
        return None if self.queues is None else (*self.queues, SYSTEM_QUEUE)

    def takes(self, capability: str) -> bool:
        """Whether this worker offers a capability that it has, or reports that it lacks what the capability needs."""
        sort, _, name = capability.removeprefix(LACKS).partition(":")
        return self.only is None or sort not in self.only or name in self.only[sort]


def _names(given: object) -> list[str]:
    """Some of the names that somebody gave in the wrong place, for an error."""
    names = list(given) if isinstance(given, Collection) and not isinstance(given, str) else [given]
    return [str(name) for name in names[:3]]
