"""Rows about what comes for a run that is under way."""

from __future__ import annotations

from typing import NamedTuple


class Steer(NamedTuple):
    id: str
    run: str
    body: str  # the blocks of a user message


class Mail(NamedTuple):
    interrupted: str | None
    steered: int


class MailOf(NamedTuple):
    run: str
    interrupted: str | None
    steered: int


class Interrupted(NamedTuple):
    id: str
    interrupted: int


class CurrentRun(NamedTuple):
    """A run that has not ended, and what its job does."""

    id: str
    job: int
    session: str
    branch: str
    ordinal: int
    agent_name: str
    state: str
    prompted: int
    turns: int
    parent: str | None
    input: str
    job_state: str
    channel: str | None
    agent: str
