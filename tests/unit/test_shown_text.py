"""Text for people: no secrets, and nothing that commands a terminal."""

from __future__ import annotations

import pytest

from holdfast.text import escaped, escaped_lines, shown, shown_lines, shown_text, shown_value

KEY = "sk-ant-api03-0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain words, ü and 漢字", "plain words, ü and 漢字"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"),
        ("\x9b2J\x00\x7f", "\\x9b2J\\x00\\x7f"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("line\u2028separator", "line\\u2028separator"),
        ("80\xa0euros", "80 euros"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text: str, safe: str) -> None:
    assert escaped(text) == safe


def test_lines_stay_lines_and_words_stay_whole() -> None:
    assert escaped_lines("one\r\n\ttwo\x1b[2J\n") == "one\n    two\\x1b[2J\n"
    assert escaped_lines("می\u200cخواهم \u202e") == "می\u200cخواهم \\u202e"


def test_a_line_cannot_be_forged() -> None:
    forged = "ValueError: x\n2026-01-01 ERROR somebody else failed"
    assert "\n" not in shown(forged)
    assert [line[:2] for line in shown_lines(forged).splitlines()] == ["  ", "  "]


def test_secrets_are_removed() -> None:
    assert KEY not in shown(f"401 for {KEY}")
    assert KEY not in shown_text(f"one\ntwo {KEY}")
    assert shown_value({"password": "hunter2", "name": "Ann"}) == {"password": "[redacted]", "name": "Ann"}


def test_half_a_character_can_be_shown() -> None:
    assert shown("a\ud800b").encode()


def test_lines_keep_their_indentation() -> None:
    assert shown_lines("a\n\tb\n") == "  a\n      b"
