"""What models, tools, web pages and tenants write is hostile: each function that reads it takes time in proportion.

`READERS` names each such function with the inputs that are worst for it. Each input is a unit that is repeated. The
measure is CPU time of this process over a large ratio of lengths, so a busy machine changes nothing: sixteen times as
long a text may take four times sixteen times as long, and a quadratic function takes 256 times as long.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest

from holdfast.http.pages.markdown import IN_MESSAGE, ON_PAGE, Prose
from holdfast.redaction import Redactor

SHORT, RATIO, SLACK = 2_000, 16, 4

READERS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "redaction of a text": (
        lambda text: Redactor().text(text),
        [
            *(
                "a",
                "A",
                " ",
                "-",
                "\\",
                '"',
                "key",
                "sk-",
                "sk-a",
                "eyJ-",
                "-eyJ",
                "eyJaaaaaaaa.aaaaaaaa ",
                "a" * 11 + ".bbbbbbbb.",
            ),
            *(
                "key=",
                "key=1,",
                "key =",
                "?key",
                "token:",
                "token: secret: ",
                "x-key ",
                "'key':\"",
                '"key":"',
                '\\"key\\":\\"',
            ),
            *("bearer ", "authorization ", "authorization: basic ", "://a:", "://aaaaaaaa", "SG.aaaaaaaaaa-"),
            *(
                "-----BEGIN ",
                "-----BEGIN PRIVATE KEY-----END ",
                "{ ",
                '{"',
                '{"\\',
                '{"a":[',
                '{"a":{',
                '{"a":"b"} ',
                '{"a":"b",',
            ),
        ],
    ),
    "redaction of JSON": (
        lambda text: Redactor().json(
            "[" + ",".join(f'"{text[at : at + 9]}"' for at in range(0, len(text), 9)) + "]", "all"
        ),
        ["a", "key=", "sk-", "eyJ-"],
    ),
    "Markdown of a page": (
        lambda text: [Prose().html(text) for _ in range(5)],
        [
            "[",
            "[a](",
            "![",
            "[a][",
            "**a ",
            "*a_",
            "_a_ *",
            "``a`",
            "> ",
            "- ",
            "  - a\n",
            "|a|",
            "<",
            "<a ",
            "&#",
            "\\",
            "[a]: b\n",
        ],
    ),
}
CASES = [pytest.param(name, unit, id=f"{name}: {unit!r}") for name, (_, units) in READERS.items() for unit in units]


@pytest.mark.parametrize(("name", "unit"), CASES)
def test_a_longer_text_takes_time_in_proportion(name: str, unit: str) -> None:
    read, _ = READERS[name]
    short, long = (unit * (length // len(unit) + 1) for length in (SHORT, RATIO * SHORT))
    measured = [(cpu_of(read, short), cpu_of(read, long))]
    while not is_linear(*measured[-1]) and len(measured) < 3:  # what disturbed one measure does not disturb three
        measured.append((cpu_of(read, short), cpu_of(read, long)))
    assert is_linear(*measured[-1]), f"seconds for {len(short)} and for {len(long)} characters: {measured}"


def test_the_measure_notices_a_function_that_is_quadratic() -> None:
    def read(text: str) -> int:
        return sum(text.count("b", at) for at in range(len(text)))

    assert not is_linear(cpu_of(read, "a" * SHORT), cpu_of(read, "a" * RATIO * SHORT))


def test_a_value_of_any_depth_is_redacted() -> None:
    deep: object = "sk-abcdefghij0123456789"
    for _ in range(50_000):
        deep = [deep]
    redacted = Redactor().value(deep)
    while isinstance(redacted, list):
        (redacted,) = redacted
    assert redacted == "[redacted]"


def test_markup_beyond_the_limit_of_a_message_or_a_page_is_shown_as_written() -> None:
    text, long = "*a*" * (IN_MESSAGE // 2), "*<b>*" * IN_MESSAGE
    assert "<em>" not in Prose().html(long)
    assert "&lt;b&gt;" in Prose().html(long)
    page = Prose()
    shown = [page.html(text) for _ in range(ON_PAGE // IN_MESSAGE + 2)]
    assert ["<em>" in each for each in shown] == [True] * (ON_PAGE // IN_MESSAGE) + [False, False]


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 400 + '"sk-abcdefghij0123456789"' + "}" * 400,
        '{"a":' * 100_000 + '"sk-abcdefghij0123456789"',
        "token: secret: abc12345",
        "a-eyJhbGciOiJI.eyJzdWIiOiJ4.sig",
        "token=token=token=abcdef1",
    ],
)
def test_a_secret_among_what_distracts_is_found(text: str) -> None:
    shown = Redactor().text(text)
    assert "[redacted]" in shown
    assert not any(secret in shown for secret in ("abcdefghij0123456789", "abc12345", "eyJzdWIi", "abcdef1"))


def is_linear(short: float, long: float) -> bool:
    return long <= SLACK * RATIO * max(short, 0.0005)


def cpu_of(read: Callable[[str], object], text: str) -> float:
    gc.disable()  # it would count what other tests have left
    try:
        begun = time.process_time()
        read(text)
        return time.process_time() - begun
    finally:
        gc.enable()
