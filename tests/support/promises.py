"""What is promised of every history, by number, and the error that says which promise was broken."""

from __future__ import annotations

from typing import Final

PROMISES: Final = {
    "I2": "terminal is final",
    "I3": "each change is in the table of transitions",
    "I4": "tokens rise",
    "I5": "a stale token changes nothing",
    "I6": "leases never overlap",
    "I7": "a lease grows only while it lasts, up to its ceiling",
    "I8": "attempts are the ended claims",
    "I9": "a job at its limit is terminal",
    "I16": "terms rise, with one holder each",
    "I17": "families are counted, and cancelled, to their last member",
    "I19": "one job for one key",
    "I21": "nothing fires early",
    "I26": "a job has one row in ready, later, lease or ended",
    "I27": "an attempt is recorded in one place",
    "I28": "a row agrees with what its job asked for",
    "I29": "one job holds a unique key",
    "P3": "a signal is taken once",
    "P6": "a worker that is gone stays gone",
}


class Broken(AssertionError):
    """An invariant does not hold; the message begins with its number."""

    def __init__(self, number: str, what: str) -> None:
        super().__init__(f"{number} ({PROMISES[number]}): {what}")
        self.number = number
