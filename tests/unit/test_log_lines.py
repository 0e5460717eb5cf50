"""The lines of a command's log: for people and for programs, coloured on a terminal only."""

from __future__ import annotations

import io
import json
import logging

import pytest

from holdfast.cli.logs import JsonLines, TextLines, WorkerName, is_colored
from holdfast.text import named

KEY = "sk-ant-api03-0123456789abcdef"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(message: str, level: int = logging.WARNING, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelno": level, "levelname": logging.getLevelName(level), **fields})


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_colored(Terminal())
    assert not is_colored(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colored(Terminal())
    assert "\x1b[33mWARNING\x1b[0m" in TextLines(colored=True).format(record("careful"))
    assert "\x1b" not in TextLines(colored=False).format(record("careful"))


def test_a_message_cannot_forge_a_line_or_show_a_secret() -> None:
    text = TextLines(colored=False).format(record(f"one\ntwo \x1b[2J {KEY}"))
    assert text.endswith("one\\ntwo \\x1b[2J [redacted]")
    line = JsonLines().format(record(f"one\ntwo \u202e {KEY}", kind=f"k {KEY}", odd=object()))
    assert line.isascii()
    said = json.loads(line)
    assert (said["message"], said["kind"], said["level"]) == ("one\ntwo \u202e [redacted]", "k [redacted]", "warning")


def test_an_exception_stands_below_its_line() -> None:
    try:
        raise ValueError(f"bad {KEY}")
    except ValueError as problem:
        failed = record("it failed", exc_info=(ValueError, problem, problem.__traceback__))
    first, *rest = TextLines(colored=False).format(failed).splitlines()
    assert first.endswith("it failed")
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-1] == "  ValueError: bad [redacted]"
    assert json.loads(JsonLines().format(failed))["traceback"].startswith("Traceback")


def test_every_line_names_the_worker_once() -> None:
    own = WorkerName("w-1")
    lines = [record("a job failed"), record("ready: worker w-1"), record("it was lost", worker="w-2\x1b")]
    lines += [record("worker w-10 is gone"), record("nobody says it", worker="")]
    assert all(own.filter(each) for each in lines)
    first, ready, lost, gone, nobody = map(TextLines(colored=False).format, lines)
    assert first.endswith("a job failed [worker w-1]")
    assert ready.endswith("ready: worker w-1")
    assert lost.endswith("it was lost [worker w-2\\x1b]")
    assert gone.endswith("worker w-10 is gone [worker w-1]")
    assert nobody.endswith("nobody says it")
    assert [json.loads(JsonLines().format(each))["worker"] for each in lines[:3]] == ["w-1", "w-1", "w-2\x1b"]


def test_a_long_list_is_counted() -> None:
    names = [f"n{number}" for number in range(49)]
    assert named(names).endswith("n11 and 37 more")
    assert named(names[:12]).endswith("n11")
