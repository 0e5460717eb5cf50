"""Checkpoints: the events of a machine and where they led, as steps of its job.

Each is numbered and stored once, under the lease. It holds what changed since the one before, so the place of a machine
is what all its checkpoints say together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.kernel import codec
from holdfast.machines.stepping import MachineEvent, MachinePlace, StateFailure, Stepped, patch

_PREFIX = "machine "
_WIDEST = 4  # bytes that one character of a checkpoint can take in a step


def checkpoint_name(number: int, what: str = "") -> str:
    """The step under which a checkpoint is stored, or something that is done before it."""
    return f"{_PREFIX}{number:06d}{' ' if what else ''}{what}"


def in_parts(number: int, text: str, cap: int) -> tuple[list[tuple[str, str]], str]:
    """A checkpoint that is larger than one step may be: the steps to store first, and what then stands in its place.

    Their names say what is in them: a second attempt that has something else to store never mixes with the first.
    """
    if len(text.encode()) <= cap:
        return [], text
    size, digest = cap // _WIDEST, codec.digest(text)[:16]
    pieces = [codec.encode(text[at : at + size], what="a part", cap=cap) for at in range(0, len(text), size)]
    names = [checkpoint_name(number, f"part {digest} {place}") for place in range(len(pieces))]
    return list(zip(names, pieces, strict=True)), codec.encode({"parts": names}, what="a list of parts", cap=cap)


def joined(pieces: Iterable[str]) -> dict[str, Any]:
    """A checkpoint that was stored in parts."""
    made: dict[str, Any] = codec.decode("".join(codec.decode(piece) for piece in pieces))
    return made


class CheckpointEvents(NamedTuple):
    """A checkpoint's number, and the events that it holds."""

    number: int
    events: tuple[MachineEvent, ...]


def record(before: MachinePlace | None, moved: Stepped) -> dict[str, Any]:
    """What is stored of a move."""
    changed, removed = patch({} if before is None else before.context, moved.to.context)
    to = moved.to
    stored: dict[str, Any] = {
        "events": [
            {"name": event.name, "state": event.state, "step": event.step, "detail": event.detail}
            for event in moved.events
        ],
        "state": to.state,
        "step": to.step,
        "part": to.part,
        "set": changed,
    }
    optional = {"unset": removed or None, "output": to.output, "over": to.over or None, "result": to.result}
    stored |= {name: value for name, value in optional.items() if value is not None}
    if to.failure is not None:
        stored["failure"] = {"classes": list(to.failure.classes), "message": to.failure.message}
        stored["failure"] |= {"trace": to.failure.trace} if to.failure.trace else {}
    return stored


def replayed(before: MachinePlace | None, stored: Mapping[str, Any]) -> MachinePlace:
    """The place that a checkpoint led to."""
    context = {} if before is None else dict(before.context)
    context |= stored["set"]
    for name in stored.get("unset", ()):
        context.pop(name, None)
    failure = stored.get("failure")
    return MachinePlace(
        state=stored["state"],
        step=stored["step"],
        part=stored["part"],
        context=context,
        output=stored.get("output"),
        result=stored.get("result"),
        failure=None if failure is None else StateFailure(**{**failure, "classes": tuple(failure["classes"])}),
        over=stored.get("over", False),
    )


def read_steps(steps: Iterable[tuple[str, str]]) -> tuple[MachinePlace | None, list[CheckpointEvents]]:
    """Where a machine is, and what happened to it, by the steps of its job."""
    place: MachinePlace | None = None
    told: list[CheckpointEvents] = []
    all_steps = dict(steps)
    for name, result in sorted(each for each in all_steps.items() if _is_checkpoint(each[0])):
        stored = codec.decode(result)
        if "parts" in stored:
            stored = joined(all_steps[part] for part in stored["parts"])
        place = replayed(place, stored)
        told.append(
            CheckpointEvents(int(name.removeprefix(_PREFIX)), tuple(MachineEvent(**each) for each in stored["events"]))
        )
    return place, told


def _is_checkpoint(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()
