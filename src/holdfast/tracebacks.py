"""Tracebacks as they are stored and shown: the user's own lines, with the frames of Holdfast folded.

A traceback has a bounded size. When it is too long, frames of libraries go first and then the user's frames in the
middle. The frame that raised and the exception itself are always there.
"""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.shown_text import plural, shown_lines

E = TypeVar("E", bound=BaseException)

LIMIT = 12_000  # bytes; below the default error_cap, so that nothing cuts it again
_LONGEST_LINE = 2_000  # characters of the exception's own text, which is also stored beside the traceback
_LINKS = 8  # exceptions of a chain or of a group that are shown
_OURS = str(Path(__file__).parent) + "/"
_LIBRARIES = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib", "platlib")})
_MOST_OF_A_STACK = 8  # frames of libraries, and as many of the user's
_FOLD = "<folded>"
_CUT = "\n…\n"
_BEFORE = "… and what came before it"
_STEPS = (1_000, 100, 40, 20, 8, 4, 2, 1)  # frames that are kept, ever fewer until it is short enough


def traceback_of(problem: BaseException) -> str:
    """The traceback of an exception, with its causes, in at most `LIMIT` bytes."""
    chain = traceback.TracebackException.from_exception(problem, compact=True)
    _shorten_texts(chain)
    stacks = {id(link): list(link.stack) for link in _links(chain)}
    text = ""
    for most in _STEPS:
        for link in _links(chain):
            link.stack = _Folded(_kept(stacks[id(link)], most, refused=_is_refusal(link)))
        text = "".join(chain.format())
        if len(text.encode(errors="replace")) <= LIMIT:
            break
    return without_middle(text, LIMIT - len(_CUT.encode()))


def stack_of(frames: Sequence[FrameType]) -> str:
    """Where a thread stands, as a traceback shows it. The innermost frame comes first here, and last in the text."""
    lines = list(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(frames)))
    return "".join(_Folded(_kept(lines, _MOST_OF_A_STACK, refused=False)).format())


def message_of(problem: BaseException | None) -> str:
    """The type of an exception and what it says, also of one whose `__str__` fails."""
    try:
        said = str(problem)
    except Exception:  # noqa: BLE001  the user's own code
        said = "its text could not be made"
    return f"{type(problem).__name__}: {said}"


def without_middle(text: str, cap: int) -> str:
    """A text of more than `cap` bytes without its middle, because its end says what happened."""
    data = text.encode(errors="replace")
    if len(data) <= cap:
        return text
    half = max(1, cap // 3)
    return f"{data[:half].decode(errors='ignore')}{_CUT}{data[-(cap - half) :].decode(errors='ignore')}"


def with_traceback(problem: E, what: str, trace: str | None) -> E:
    """The exception, with a note that shows where something of the same failure was raised by a worker."""
    if trace:
        problem.add_note(f"The traceback of {what}, from its worker:\n{shown_lines(trace)}")
    return problem


def log_with_traceback(
    log: logging.Logger, level: int, words: str, trace: str, extra: dict[str, Any] | None = None
) -> None:
    """Log `words` with a traceback below them, both as people may read them. Ask `isEnabledFor` first."""
    record = log.makeRecord(log.name, level, __file__, 0, words, (), None, extra=extra)
    if trace:
        record.exc_text = shown_lines(trace)  # where formatters look for a traceback that has been formatted
    log.handle(record)


class _Folded(traceback.StackSummary):
    """Frames, among them stand-ins for those that are folded or left out."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **how: Any) -> str:
        if frame_summary.filename == _FOLD:
            return f"  … {frame_summary.name}\n"
        return super().format_frame_summary(frame_summary, **how)


def _kept(frames: Sequence[traceback.FrameSummary], most: int, *, refused: bool) -> list[traceback.FrameSummary]:
    """At most so many frames of libraries and so many of the user's, the last of each; ours are folded.

    `refused`: Holdfast raised it on purpose, and its message says all.
    """
    if all(map(_is_ours, frames)) and not refused:  # a fault of Holdfast itself
        return _folded(frames[-most:], lambda _: False, "", before=len(frames) - most)
    own = _folded(frames, _is_ours, "of holdfast")
    foreign = [frame for frame in own if _is_library(frame)]
    spared = {id(frame) for frame in foreign[len(foreign) - most :]} if len(foreign) > most else None
    short = _folded(own, lambda frame: spared is not None and _is_library(frame) and id(frame) not in spared)
    if len(short) <= 2 * most:
        return short
    return [*short[:most], _fold(len(short) - 2 * most, "left out"), *short[-most:]]


def _folded(
    frames: Sequence[traceback.FrameSummary],
    goes: Callable[[traceback.FrameSummary], bool],
    what: str = "of libraries",
    *,
    before: int = 0,
) -> list[traceback.FrameSummary]:
    """The frames, with one stand-in for each row of those that go."""
    kept: list[traceback.FrameSummary] = [_fold(before, "left out")] if before > 0 else []
    gone = 0
    for frame in frames:
        if goes(frame):
            gone += 1
            continue
        if gone:
            kept.append(_fold(gone, what))
            gone = 0
        kept.append(frame)
    return [*kept, _fold(gone, what)] if gone else kept


def _fold(count: int, what: str) -> traceback.FrameSummary:
    words = f"{plural(count, 'frame')} {what}"
    return traceback.FrameSummary(_FOLD, count, words, lookup_line=False, line="")


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _is_refusal(link: traceback.TracebackException) -> bool:
    return issubclass(link.exc_type, HoldfastError)


def _is_library(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((*_LIBRARIES, "<frozen "))


def _links(chain: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The exception, its causes, and those in its groups."""
    waiting, seen = [chain], 0
    while waiting and seen < _LINKS:
        link = waiting.pop(0)
        seen += 1
        yield link
        waiting += [each for each in (link.__cause__, link.__context__) if each is not None]
        waiting += getattr(link, "exceptions", None) or []


def _shorten_texts(chain: traceback.TracebackException) -> None:
    """Cut the chain where it is too long, and long messages. `_str` is what the standard library prints."""
    links = list(_links(chain))
    known = {id(link) for link in links}
    for link in links:
        left: list[str] = []
        if link.__cause__ is not None and id(link.__cause__) not in known:
            link.__cause__ = None
            left = [_BEFORE]
        if link.__context__ is not None and id(link.__context__) not in known:
            link.__context__ = None
            left = [_BEFORE]
        group: list[traceback.TracebackException] | None = getattr(link, "exceptions", None)
        if group:
            link.exceptions = [each for each in group if id(each) in known]
            left += [f"… and {gone} more"] if (gone := len(group) - len(link.exceptions)) else []
        notes = getattr(link, "__notes__", None)
        own_notes = notes if isinstance(notes, Sequence) and not isinstance(notes, str) else []
        if own_notes or left:
            link.__notes__ = [*(_short(str(note)) for note in own_notes[:_LINKS]), *left]
        if isinstance(text := getattr(link, "_str", None), str):
            link._str = _short(text)  # type: ignore[attr-defined]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
