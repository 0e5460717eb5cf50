"""How a driver raises its library's error under a name of ours."""

from __future__ import annotations

from typing import NoReturn


def raise_as(known: Exception, problem: Exception) -> NoReturn:
    """Raise `known`, caused by `problem`. An error that has no name of ours is not its own cause."""
    if known is problem:
        raise problem
    raise known from problem
