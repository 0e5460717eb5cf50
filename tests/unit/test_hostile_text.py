"""What models, tools, web pages and tenants write is hostile: each function that reads it takes time in proportion.

`READERS` names each such function with the inputs that are worst for it. Each input is a unit that is repeated, and
then one of `TAILS`: what is looked for again and again may stand at the end. A module that begins to use regular
expressions says in `MEASURED` or `OWN` whose texts they read.

The measure is CPU time of this process over a large ratio of lengths, so a busy machine changes nothing: sixteen times
as long a text may take four times sixteen times as long, and a quadratic function takes 256 times as long.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import gc
import importlib
import itertools
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest
from starlette.requests import cookie_parser

import holdfast
from holdfast import durations
from holdfast.agents.forks import comparison
from holdfast.agents.overviews import ids_from
from holdfast.agents.runs.end import ContentRefusal
from holdfast.agents.runs.turn import to_replace
from holdfast.cli.logs import TextLines
from holdfast.cli.tables import Column, _wrapped, short_name
from holdfast.errors import HoldfastError, UsageError
from holdfast.facades.universal_agent.protocol import read_client
from holdfast.facades.universal_agent.workspaces import is_name
from holdfast.http.app import quick_cookies
from holdfast.http.pages import agents
from holdfast.http.pages.forms import Form, _fields, pairs_of
from holdfast.http.pages.layout import is_below
from holdfast.http.pages.rendering import (
    IN_MESSAGE,
    ON_PAGE,
    Prose,
    as_html,
    error_lines,
    json_text,
    json_whole,
    prompt_line,
    shell_address,
)
from holdfast.http.security.checks import host_of, is_forged
from holdfast.kernel import codec, failure_groups
from holdfast.kernel.drivers import sqlite_file
from holdfast.kernel.drivers.addresses import masked, without_password
from holdfast.machines.expressions import BadExpression, parse
from holdfast.machines.load import load
from holdfast.machines.problems import BadMachine
from holdfast.machines.templates import BadTemplate, compile_template
from holdfast.models.failures import refused
from holdfast.models.schemas import accepted
from holdfast.models.sse import DataLines, Lines
from holdfast.resp.commands.keyspace import glob
from holdfast.resp.frames import AFTER_AUTH, BadFrame, Frames
from holdfast.resp.plan import read_plan
from holdfast.text import Redactor, escaped_lines, members, remedy_of, shown, shown_lines, traceback_of
from holdfast.validation import did_you_mean
from holdfast.values import place

SHORT, RATIO, SLACK = 2_000, 16, 4
TAILS = ("", "1", '"', "}")
REFUSALS = (HoldfastError, BadExpression, BadTemplate, BadMachine, BadFrame, apsw.InterruptError)


def in_pieces(take: Callable[[bytes], object]) -> Callable[[str], object]:
    """Bytes as they come from a slow peer."""

    def read(text: str) -> None:
        data = text.encode()
        for at in range(0, len(data), 16):
            take(data[at : at + 16])

    return read


def frames(text: str) -> None:
    cut = Frames(AFTER_AUTH)

    def take(piece: bytes) -> None:
        cut.feed(piece)
        while cut.next() is not None:
            pass

    in_pieces(take)(text)


def read_event(text: str) -> None:
    Lines().feed(f"data: {text}\n\n".encode())


def plan(text: str) -> None:
    task = {"task_number": 1, "command": "echo", "args": [text[:60_000]]}
    read_plan({"plan_id": "p", "plan_description": "", "tasks": [task]}).tasks[0].arguments({"a": "b"})


def log_line(text: str) -> None:
    record = logging.LogRecord("holdfast", logging.INFO, __file__, 1, text, (), None)
    record.worker = "w1"
    TextLines(colored=False).format(record)


def form(text: str) -> None:
    with contextlib.suppress(ValueError):  # more fields than are read
        pairs_of(Form(_fields(text.encode())), "metadata")


def cookie(text: str) -> None:
    cookie_parser(quick_cookies(text.encode()).decode())


def lines_of(text: str) -> list[str]:
    """Lines in no order, none of which is so frequent that a comparison leaves it out."""
    chance = random.Random(1)
    return [f"{text[:9]} {chance.randrange(128)}" for _ in text]


def versions(text: str) -> None:
    old, new = (SimpleNamespace(definition={"stop": lines}) for lines in (lines_of(text), lines_of(text)[::-1]))
    agents._lines(cast(Any, old), cast(Any, new))


def answers(text: str) -> None:
    one, other = (SimpleNamespace(id="a", error="\n".join(each), output=None) for each in (lines_of(text), [text]))
    comparison._diff(cast(Any, one), cast(Any, other))
    comparison._diff(
        cast(Any, one), cast(Any, SimpleNamespace(**vars(one) | {"error": "\n".join(lines_of(text)[::-1])}))
    )


def names_of_states(text: str) -> None:
    """A machine in which each state goes to one that is not there."""
    states = [f"    s{at}:\n      transitions:\n        - to: z{at}\n" for at in range(len(text) // 8)]
    load('spec: flatmachine\nspec_version: "0.8.3"\ndata:\n  name: m\n  states:\n' + "".join(states), "m.yml")


def filtered(text: str) -> None:
    """What metadata have, and what a filter wants of them: texts, and lists of them."""
    for wide in (list[Any](text), [[each] for each in text]):
        sqlite_file._contains(json.dumps({"a": wide}), json.dumps({"a": wide[::-1] + wide[-1:] * len(wide)}))


def table(text: str) -> None:
    columns = [Column("WHAT", "prose")]
    _wrapped(columns, [text], {0: 20})


READERS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "a record of a log": (log_line, ["worker w", "worker w1-", "\n", "\x1b"]),
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
                "key:",
                'token="',
                "token='",
                'token=\\"',
                'token= "\\',
                "token='\"",
                "token=\\\\'token=\"\\ ",
                "token  ",
                "token:  ",
                "://a:/",
                "://a:b@/",
                "://a:@b:",
                "hft_",
                '{"a":1,"a":2,',
                '{"a":1,"a":2} ',
                "password:",
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
        lambda text: Redactor().json(json.dumps([text[at : at + 9] for at in range(0, len(text), 9)]), "all"),
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
            "<a@b.c>",
        ],
    ),
    "a filter of metadata": (filtered, ["a", "ab", "1"]),
    "two versions of an agent": (versions, ["a", "{"]),
    "the answers of two runs": (answers, ["a", "a\n", "\r"]),
    "names in a machine": (names_of_states, ["s", "z"]),
    "prose in a table": (table, ["a", "a ", "-", "a-", " ", "\n", "--a"]),
    "a problem": (
        lambda text: members("UsageError", text, "never", remedy_of(UsageError(text))),
        ["a", "\n", "sk-a", "\u202e", '{"a":', ". ", "["],
    ),
    "a cookie": (cookie, ['a="\\', "\\1", '\\"', ";", "a=b;", '"']),
    "a duration": (durations.microseconds, ["1", "1.", "1h", "1.1", " ", "h"]),
    "a rate": (durations.rate, ["1", "1/", "/s", " ", "1/s burst ", "burst"]),
    "a cron expression": (
        lambda text: durations.next_tick(text, "UTC", 0),
        ["1,", "*/", "* ", "1-", "every 1", "1", "*"],
    ),
    "an event of a stream": (in_pieces(DataLines().data), ["x", "data: {}\n", "\n", "data:", "\r"]),
    "a request of RESP": (
        frames,
        ["*1\r\n$1\r\na\r\n", "a ", "a\r\n", "*", "$", "*16000\r\n", "'", '"', "$-1\r\n", "*3\r\n$1\r\na\r\n"],
    ),
    "a key and a pattern of keys": (
        lambda text: [
            glob(each).fullmatch(text.encode()) for each in (b"*a*b?", b"*[a-c]*?\\a", b"a*" * 20, b"*" * 20)
        ],
        ["a", "ab", "b", "*", "\\"],
    ),
    "a plan and its input": (plan, ["{{", "{{input", "{{ ", "}}", "{{input.a}}", "{", "{{input.", "}}{{", "-"]),
    "JSON of a client": (
        lambda text: codec.decode_foreign(text, what="it"),
        ["[", '"', "\\", '\\"', '{"a":', "1", "1,", "[1,", " ", "-", "\\u0000", '"\\', "[[],", "\n"],
    ),
    "JSON that is stored": (
        lambda text: codec.encode([text, text], what="it", cap=1 << 30),
        ["\\", "\\u0000", "\\\\u000", "\0", "a", "\ud800"],
    ),
    "a group of failures": (
        lambda text: failure_groups.alike("X", text),
        ["a", "A", "A.", "a.", "1", "1.", "a1", "0123abcd-", "-", "A: ", "\n", " ", "\x85"],
    ),
    "a line of a log": (shown, ["\x1b", "\u202e", "a", "\n", "\t", "\ud800", "sk-", "key="]),
    "lines of a log": (shown_lines, ["\x1b", "\n", "\t", "\r\n", "a\n"]),
    "lines on a terminal": (escaped_lines, ["\x1b", "\n", "\t", "\r\n", "\u200d"]),
    "a name in a table": (lambda text: short_name(text[:512], 20), [".", "a.", "a", "\u4e00"]),
    "a traceback": (lambda text: traceback_of(ValueError(text)), ["a", "\n", "sk-", "\ud800"]),
    "what to do about an error": (lambda text: remedy_of(UsageError(text)), [".", ". ", ".  ", ":\n", " ", "a. "]),
    "a condition": (parse, ["(", "a.", "1", "'", '"\\', "not ", "-", "a+", "a[", " ", "a|"]),
    "a template": (
        lambda text: compile_template(text[:20_000]),
        ["{{", "{%", "{#", "{{a}}", "{{a|", "}}", "{{'", "a", "{{(", "{{[", "{% if a %}", "\n", "{{ 1 -", "{{-", "{%-"],
    ),
    "YAML of a machine": (
        lambda text: load(text, "m.yml"),
        [
            "a: ",
            "- ",
            "[",
            "{",
            "[a,",
            "&a ",
            "*a ",
            "? ",
            "!!a ",
            "'",
            '"',
            "|\n",
            "# ",
            "a:\n ",
            "\t",
            "- a\n",
            "%",
            "---\n",
        ],
    ),
    "the beginning of an id": (ids_from, ["a", "-", "0"]),
    "a cursor": (lambda text: place(text, str), ["a", "W1", "W1s", "=", "-"]),
    "headers": (
        lambda text: [host_of(text), is_forged({"origin": text, "host": text}, bearer=False)],
        [":", "[", "a.", "https://", "//", "@", "]"],
    ),
    "an address": (
        lambda text: [is_below("/" + text), shell_address("/" + text), without_password(text), masked(text)],
        ["/", "//", "..", "%2e", "/../", "a:b@", "postgresql://a:b@", "password=", "?", "&", "@", "password=a&"],
    ),
    "a form": (
        form,
        ["%41", "%", "a=", "a&", "&", "+", "=", "a=b&"],
    ),
    "a message of the gateway": (read_client, ["[", '{"', "a", "1"]),
    "a name of a workspace": (is_name, ["a", ".", ":", "-"]),
    "an error of a provider": (
        lambda text: refused(400, {"error": {"type": "invalid_request_error", "message": text}}, {"retry-after": text}),
        ["organization ", "account ", "a", "disabled", "1"],
    ),
    "a schema of a tool": (
        lambda text: accepted(
            {"type": "object", "properties": {"a": {"type": "string", "pattern": text, "enum": [*text]}}}
        ),
        ["(", "a*", "(a+)+", "\\", "[", "a{1}", "(?:"],
    ),
    "a misspelt name": (lambda text: did_you_mean(text, ["mail", "a" * 100, "ab" * 50]), ["a", "ab", "mail"]),
    "values on a page": (
        lambda text: [
            json_text([text]),
            json_whole([text]),
            prompt_line([{"text": text}]),
            error_lines({"message": text}),
        ],
        ["a", "\n", "\u202e", '"', "\\", " ", "\t"],
    ),
}

# Whose texts the regular expressions of each module read: a reader above that reaches them, or why nobody else writes
# them.
ROOT = Path(holdfast.__file__).parent
MEASURED = {
    "agents/forks/comparison.py": "the answers of two runs",
    "agents/runs/turn.py": "an error of a provider",
    "agents/runs/end.py": "an error of a provider",
    "agents/overviews.py": "the beginning of an id",
    "agents/tools.py": "the beginning of an id",
    "cli/logs.py": "a record of a log",
    "cli/short_ids.py": "the beginning of an id",
    "cli/tables.py": "prose in a table",
    "durations.py": "a duration",
    "facades/universal_agent/workspaces.py": "a name of a workspace",
    "http/live/live.py": "an event of a stream",
    "http/pages/agents.py": "two versions of an agent",
    "http/security/gate.py": "JSON of a client",
    "kernel/codec.py": "JSON that is stored",
    "kernel/drivers/addresses.py": "an address",
    "kernel/failure_groups.py": "a group of failures",
    "machines/documents.py": "YAML of a machine",
    "machines/drawing.py": "YAML of a machine",
    "machines/expressions.py": "a condition",
    "machines/load.py": "YAML of a machine",
    "models/batches.py": "an error of a provider",
    "models/failures.py": "an error of a provider",
    "models/schemas.py": "a schema of a tool",
    "text.py": "redaction of a text",
    "resp/commands/plans.py": "a plan and its input",
    "resp/commands/leases.py": "a plan and its input",
    "resp/commands/keyspace.py": "a key and a pattern of keys",
    "resp/plan.py": "a plan and its input",
    "resp/client.py": "a request of RESP",
    "validation.py": "a misspelt name",
}
OWN = {
    "agents/runs/decision.py": "one class of characters, of bounded length",
    "cli/deploy.py": "settings of the person who types the command",
    "cli/triggers.py": "the person's own crontab",
    "facades/flatagents/hooks.py": "actions of the program's own machines",
    "kernel/drivers/ad_hoc.py": "SQL of the program",
    "kernel/migrate.py": "migrations; and a schema, when a file is opened",
    "kernel/row_security.py": "our own SQL",
    "kernel/sql/__init__.py": "our own SQL",
    "models/script.py": "for tests",
    "models/steps.py": "for tests",
    "models/facts.py": "names of models that the program has",
    "models/registry.py": "prefixes that the program has",
    "models/simulator/batch_exchange.py": "for tests",
    "models/simulator/strict.py": "for tests",
    "models/simulator/state.py": "for tests",
    "settings.py": "names of variables of the environment",
    "testing/bought.py": "for tests",
    "testing/labs.py": "for tests",
}
_USES = re.compile(
    r"\bre\.(?:compile|sub|subn|split|match|search|fullmatch|findall|finditer)\(|"
    r"\b(?:difflib|textwrap|yaml|email\.utils)\.[A-Za-z_]+\("
)
_METHODS = ("match", "search", "fullmatch", "findall", "finditer", "split", "sub")
# `make test` tries each reader with the first of its units.
CASES = [
    pytest.param(name, unit, id=f"{name}: {unit!r}", marks=[pytest.mark.long] if unit != units[0] else [])
    for name, (_, units) in READERS.items()
    for unit in units
]


@pytest.mark.parametrize(("name", "unit"), CASES)
def test_a_longer_text_takes_time_in_proportion(name: str, unit: str) -> None:
    read, _ = READERS[name]
    for tail in TAILS:
        short, long = (unit * (length // len(unit) + 1) + tail for length in (SHORT, RATIO * SHORT))
        measured = [(cpu_of(read, short), cpu_of(read, long))]
        while not is_linear(*measured[-1]) and len(measured) < 3:  # what disturbed one measure does not disturb three
            measured.append((cpu_of(read, short), cpu_of(read, long)))
        assert is_linear(*measured[-1]), (
            f"seconds for {len(short)} and {len(long)} characters, {tail!r} last: {measured}"
        )


def test_every_module_that_searches_or_compares_texts_says_whose_they_are() -> None:
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if _USES.search(path.read_text())}
    assert found == MEASURED.keys() | OWN.keys(), "add it to MEASURED with a reader, or to OWN with the reason"
    assert set(MEASURED.values()) <= READERS.keys()


def patterns_of(file: str) -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    """The regular expressions that a module has names for, and how it uses them."""
    module = importlib.import_module("holdfast." + file.removesuffix(".py").replace("/", "."))
    source = (ROOT / file).read_text()
    for name, value in vars(module).items():
        used = {each for each in _METHODS if re.search(rf"\b{name}\.{each}\(", source)}
        if isinstance(value, re.Pattern) and used:
            yield name, value, used


@pytest.mark.parametrize("file", MEASURED)
def test_no_short_unit_repeated_makes_a_regular_expression_slow(file: str) -> None:
    """Whatever one or two characters of an expression, repeated and then broken off, make it do."""
    for name, pattern, methods in patterns_of(file):
        text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
        signs = sorted({each for each in text if each.isprintable() and not each.isalnum()} - set("()?|^$+*"))
        units = [*"aA0 \\", *signs, *("".join(pair) for pair in itertools.product("aA0 ", signs))]
        for unit, method in itertools.product(units, methods):

            def read(text: str, method: str = method, pattern: re.Pattern[Any] = pattern) -> None:
                given: Any = text if isinstance(pattern.pattern, str) else text.encode()
                found = getattr(pattern, method)(*([given[:0]] if method == "sub" else []), given)
                collections.deque(found if method == "finditer" else (), maxlen=0)

            short, long = (f"x{unit * (length // len(unit))}\0" for length in (500, 8_000))
            measured = [(cpu_of(read, short), cpu_of(read, long))]
            while not is_linear(*measured[-1]) and len(measured) < 3:
                measured.append((cpu_of(read, short), cpu_of(read, long)))
            assert is_linear(*measured[-1]), f"{name}.{method} of {unit!r} repeated: {measured}"


def test_the_measure_notices_a_function_that_is_quadratic() -> None:
    def read(text: str) -> int:
        return sum(text.count("b", at) for at in range(len(text)))

    assert not is_linear(cpu_of(read, "a" * SHORT), cpu_of(read, "a" * RATIO * SHORT))


DIGITS = "1" * 5_000  # more than Python makes a number of
NUMBERS: list[tuple[str, Callable[[str], object], str]] = [
    ("a text", lambda text: Redactor().text(text), f'see {{"a": {DIGITS}}}'),
    ("a text cut off", lambda text: Redactor().text(text), f'see {{"a": {{"b": -{DIGITS}, '),
    ("stored JSON", lambda text: Redactor().json(text), f"[{DIGITS}]"),
    ("JSON of a client", READERS["JSON of a client"][0], f"[{DIGITS}]"),
    ("a rate", durations.rate, f"{DIGITS}/s"),
    ("a burst", durations.rate, f"1/s burst {DIGITS}"),
    ("a duration", durations.microseconds, f"{DIGITS}s"),
    ("a cron expression", READERS["a cron expression"][0], f"{DIGITS} * * * *"),
    ("an event of a stream", read_event, f'{{"type": "ping", "a": {DIGITS}}}'),
    ("an event that nests", read_event, "[" * 100_000),
    ("a plan", plan, f"{{{{input[{DIGITS}]}}}}"),
    ("YAML of a machine", READERS["YAML of a machine"][0], f"spec_version: {DIGITS}"),
    ("a condition", parse, f"context.a > {DIGITS}"),
    ("a template", READERS["a template"][0], f"{{{{ {DIGITS} }}}}"),
    ("a cursor", lambda text: place(base64.urlsafe_b64encode(text.encode()).decode(), int), f"[{DIGITS}]"),
    ("a message of the gateway", read_client, f'{{"type": "ping", "data": {{"a": {DIGITS}}}}}'),
    (
        "an error of a provider",
        lambda text: to_replace([], [], ContentRefusal("bad_request", text)),
        f"messages.{DIGITS}.content.0: this image is too large",
    ),
]


@pytest.mark.parametrize(("read", "text"), [pytest.param(*case[1:], id=case[0]) for case in NUMBERS])
def test_a_number_of_any_length_is_read_or_refused(read: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(*REFUSALS):
        read(text)


def test_many_numbers_that_are_too_long_take_time_in_proportion() -> None:
    for unit in (f'{{"a":{DIGITS}', f'{{"a":{DIGITS}}} ', f'{{"a":{DIGITS},'):
        read = READERS["redaction of a text"][0]
        short, long = (unit * times for times in (2, 2 * RATIO))
        assert is_linear(cpu_of(read, short), cpu_of(read, long)), unit[-2:]


def test_a_secret_beside_a_number_that_is_too_long_is_found() -> None:
    redactor = Redactor()
    assert redactor.text(f'see {{"a": [{DIGITS}], "password": "correct horse"}}') == (
        f'see {{"a":["{DIGITS}"],"password":"[redacted]"}}'
    )
    plain = f'see {{"a": {DIGITS}}}'
    assert (redactor.text(plain), redactor.count) == (plain, 1)


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
        "|".join("a" * 148) + "\n" + "|".join("-" * 148) + "\n" + "a\n" * 442,
        "> " + "|".join("a" * 148) + "\n> " + "|".join("-" * 148) + "\n" + "> a\n" * 442,
        "|".join("a" * 148) + "\n" + "|".join("-" * 148) + "\n" + "\xa0\n" * 442,
        "[a]: http://" + "x" * 15_000 + "\n\n" + "[a]" * 1_000,
        "[a]: http://a '" + "x" * 15_000 + "'\n\n" + "[a]\n" * 700,
    ],
)
def test_a_page_is_not_much_longer_than_its_markup(text: str) -> None:
    assert len(Prose().html(text)) < 10 * len(text)


def test_lines_after_quotes_take_time_in_proportion() -> None:
    assert is_linear(cpu_of(as_html, ">=\na\n" * 50), cpu_of(as_html, ">=\na\n" * 50 * RATIO))


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ([1, 2, True], [True, 2], True),
        ([1], [True], False),
        ([True, 0], [1], False),
        ([1.0], [1], True),
        ([None, "a"], [None], True),
        ([[1, 2], {"b": [3]}], [{"b": [3]}, [2]], True),
        ([[1, 2], {"b": [3]}], [[3]], False),
        ([1], [[]], False),
        ([[]], [[]], True),
        ({"a": 1}, [], False),
        ([1], {}, False),
    ],
)
def test_a_filter_of_metadata_finds_what_contains_it(outer: Any, inner: Any, expected: bool) -> None:
    assert bool(sqlite_file._contains(json.dumps({"a": outer}), json.dumps({"a": inner}))) is expected


def test_lists_of_lists_are_compared_within_bounds() -> None:
    wide = [[each] for each in range(4_000)]
    with pytest.raises(apsw.InterruptError):
        sqlite_file._contains(json.dumps({"a": wide}), json.dumps({"a": wide[::-1]}))


def test_tables_as_people_write_them_are_tables() -> None:
    shown = Prose().html("before\n\n" + "|a|b|c|\n|-|-|-|\n" + "|1|2|3|\n" * 100 + "\n" + "a line\n" * 500)
    assert shown.count("<tr>") == 101


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
        with contextlib.suppress(*REFUSALS):
            read(text)
        return time.process_time() - begun
    finally:
        gc.enable()
