"""Public ids. Every id is made by the client, so that repeating an enqueue after a lost answer is harmless."""

from __future__ import annotations

import hashlib
import uuid
from typing import NewType, TypeGuard

from holdfast.clock import Ports

JobId = NewType("JobId", str)

_RANDOM_BITS = 74
_VARIANT = 0b10 << 62
_LOW_BITS = (1 << 62) - 1


def new_id(ports: Ports) -> JobId:
    """A UUID v7: 48 bits of milliseconds, then chance; sorts by time in an index."""
    milliseconds = ports.clock.wall_us() // 1_000
    chance = ports.random.getrandbits(_RANDOM_BITS)
    high = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | chance >> 62
    digits = "%032x" % (high << 64 | _VARIANT | chance & _LOW_BITS)
    return JobId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


def derived_id(*parts: str | int) -> JobId:
    """A UUID v8 from its parts: the same parts are the same job, so launching twice is one launch."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    value = int.from_bytes(digest[:16], "big")
    value = value & ~(0xF << 76) | 0x8 << 76
    value = value & ~(0b11 << 62) | _VARIANT
    return JobId(str(uuid.UUID(int=value)))


def is_id(text: object) -> TypeGuard[str]:
    if not isinstance(text, str):
        return False
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
