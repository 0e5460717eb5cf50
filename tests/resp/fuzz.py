"""The fuzz target of frames: a corpus in files, and inputs that are made of it.

A file's name says what its bytes mean: `read-…`, `incomplete-…`, or `refused-…`.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).parent / "corpus"
_PIECES = (
    b"*",
    b"$",
    b"\r\n",
    b"-1",
    b"0",
    b"*3\r\n",
    b"$5\r\n",
    b"4294967296",
    b":1\r\n",
    b"\x00",
    b"GET / HTTP/1.1\r\n",
)


class Entry(NamedTuple):
    name: str
    data: bytes
    kind: str


@cache
def corpus() -> list[Entry]:
    files = sorted(CORPUS.glob("*.resp"))
    return [Entry(file.stem, file.read_bytes(), file.stem.partition("-")[0]) for file in files]


def mutated(chance: random.Random) -> bytes:
    """Some of the corpus, with bytes changed, left out, repeated and put in."""
    data = bytearray(b"".join(entry.data for entry in chance.choices(corpus(), k=chance.randint(1, 3))))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0 if data:
                data[at % len(data)] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 9)]
            case 2:
                data[at:at] = chance.choice(_PIECES)
            case _:
                data[at:at] = data[at : at + chance.randint(1, 30)]
    return bytes(data)
