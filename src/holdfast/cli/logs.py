"""The log of a command: lines for people or JSON for programs, on stderr.

Whatever a record says comes from anywhere. So secrets are removed from it, and it cannot command the terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import click

from holdfast.text import INDENT, Redactor, shown, shown_lines

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

WORKER = "worker"  # a field of a record: the id of the worker that says it
LINES = "lines"  # a field of a record: what is shown below it, for people alone
_COLORS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_DIM = "2"
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", LINES}  # not fields of ours

log_format_option = click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    envvar="HOLDFAST_LOG_FORMAT",
    show_envvar=True,
    help="Log lines for people, or JSON for programs.",
)
log_level_option = click.option(
    "--log-level",
    default="warning",
    show_default=True,
    type=click.Choice(LEVELS),
    help="Log this and what is worse; the worker's introduction always shows.",
)


def set_up(level: str, format: LogFormat, stream: TextIO | None = None) -> None:
    """Log to stderr from now on, unless the program has set logging up itself."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines(colored=is_colored(handler.stream)))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class WorkerName(logging.Filter):
    """Gives each record the id of this process's worker, unless it names one itself. It leaves none out."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, WORKER):
            setattr(record, WORKER, self._worker)
        return True


def name_worker(worker: str) -> None:
    """From now on every line names this worker, so that the logs of several can be told apart."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(WorkerName(worker))


def is_colored(stream: TextIO) -> bool:
    """Only on a terminal, and not where somebody has asked for none (no-color.org)."""
    return stream.isatty() and allows_colors()


def allows_colors() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class TextLines(logging.Formatter):
    """One line for each record, with its traceback indented below it."""

    def __init__(self, *, colored: bool) -> None:
        super().__init__()
        self._colored = colored

    def format(self, record: logging.LogRecord) -> str:
        at = f"{datetime.fromtimestamp(record.created):%Y-%m-%d %H:%M:%S}"
        said = shown(record.getMessage())
        words = f"{self._styled(at, _DIM)} {self._level(record)} {said}{self._worker(record, said)}"
        below = [f"{INDENT}{shown(line)}" for line in getattr(record, LINES, ())]
        return "\n".join([words, *below, *([rest] if (rest := _below(record)) else [])])

    def _worker(self, record: logging.LogRecord, said: str) -> str:
        """The worker that says it, if the words do not name it."""
        worker = shown(str(getattr(record, WORKER, "")))
        named = re.search(rf"\bworker {re.escape(worker)}(?![\w-])", said)
        return "" if named or not worker else " " + self._styled(f"[worker {worker}]", _DIM)

    def _level(self, record: logging.LogRecord) -> str:
        return self._styled(f"{record.levelname:7}", _COLORS.get(record.levelname, ""))

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colored and code else text


class JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, logger, message, traceback, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in said}
        if rest := _below(record):
            said["traceback"] = textwrap.dedent(rest)
        return json.dumps({name: _clean(value) for name, value in said.items()}, default=str)  # ASCII: all is escaped


def _clean(value: Any) -> Any:
    plain = value if isinstance(value, str | list | dict | int | float | bool | None) else str(value)
    return Redactor().value(plain)


def _below(record: logging.LogRecord) -> str:
    """The traceback and the stack of a record."""
    if record.exc_text is not None and record.exc_info is None:
        return record.exc_text  # made for people already
    trace = "" if not record.exc_info else logging.Formatter().formatException(record.exc_info)
    return "\n".join(shown_lines(text) for text in (trace, record.stack_info) if text)
