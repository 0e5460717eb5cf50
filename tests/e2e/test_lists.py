"""Every list on a terminal: it fits, it names the database, its short ids are understood."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import UTC, datetime
from fcntl import ioctl
from pathlib import Path

import pytest
from rich.cells import cell_len

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.cli import group
from holdfast.cli.short_ids import shortest, whole, whole_agent, whole_session
from holdfast.clock import Ports, SystemClock
from holdfast.errors import NotFound, UsageError
from holdfast.models import Script, call, calls
from holdfast.workers.role import Role
from tests.conftest import Place, fresh_file
from tests.support.commands import PATIENCE, environment, holdfast, run

NASTY = "日本語の長い名前 👩‍🚀 [red]x[/red] \x1b[31m\u202eabc\u2066 " + "long" * 30
LISTS: tuple[tuple[str, ...], ...] = (
    ("jobs", "ls"),
    ("runs", "ls"),
    ("runs", "inquiries"),
    ("sessions", "ls"),
    ("agents", "ls"),
    ("queues", "ls"),
    ("queues", "show", "a-queue-with-quite-a-long-name-for-a-terminal"),
    ("schedules", "ls"),
    ("workers", "ls", "--all"),
    ("lanes", "ls"),
    ("batches", "ls"),
    ("budgets", "ls"),
    ("tokens", "ls"),
    ("audit", "ls"),
    ("machine", "ls"),
    ("plan", "ls"),
    ("resp", "keys", "ls"),
    ("usage", "--by", "tenant", "--by", "agent", "--by", "model", "--by", "mode", "--by", "day"),
    ("settings",),
)
MACHINE = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: a-machine-with-quite-a-long-name-for-a-terminal
  states:
    start: {type: initial, wait_for: later, transitions: [{to: end}]}
    end: {type: final}
"""
_SGR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(url: str, *words: str, out: io.StringIO | None = None) -> str:
    """What a person sees, with its colours; or what `out` gets that is no terminal."""
    out = out or Terminal()
    where = [] if words[0] == "settings" else ["--url", url]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        group.main([*words, *where], prog_name="holdfast", standalone_mode=False)
    return out.getvalue()


def shown(url: str, *words: str) -> list[str]:
    return _SGR.sub("", seen(url, *words)).splitlines()


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    """A store with something in every list, as unpleasant as it may be."""
    place = fresh_file(tmp_path_factory.mktemp("full"), request)
    asyncio.run(_fill(place.url))
    return place.url


async def _fill(url: str) -> None:
    hf = Holdfast(url, embedded=False)
    hf.script("claude-sonnet-5-5", Script(calls(call("refund", why=NASTY))))

    @hf.tool(effect="once", approve=True)
    def refund(why: str) -> str:
        """Refund."""
        return why

    agent = hf.agent("an-agent-with-quite-a-long-name-for-a-terminal", model="claude-sonnet-5-5", tools=[refund])

    @hf.job(name="a.job.with.quite.a.long.name.for.a.terminal", queue="a-queue-with-quite-a-long-name-for-a-terminal")
    async def work() -> None: ...

    @hf.schedule("every 5m", name="a-schedule-with-quite-a-long-name-for-a-terminal")
    async def tick() -> None: ...

    async with hf:
        await work.enqueue()
        await agent.enqueue("please", session=hf.session(NASTY, metadata={"note": NASTY}))
        await core_of(hf).make_worker(Role(id="a-worker-with-quite-a-long-name", name=NASTY, until="empty")).run()
        await work.options(delay="1h").enqueue()
        await hf.queues.pause("a-queue-with-quite-a-long-name-for-a-terminal", reason=NASTY)
        await hf.budgets.set("123456.25", tenant="acme", per="1d")
        await hf.budgets.set("5", each_tenant=True, per="1d")
        await hf.access.tokens.create(NASTY[:40], role="viewer", tenant="acme")
        machine = Path(url.removeprefix("sqlite:///")).with_name("machine.yml")
        machine.write_text(MACHINE)
        await hf.machine(machine).enqueue({})
    plan = machine.with_name("plan.json")
    plan.write_text('{"plan_id": "count", "tasks": [{"task_number": 1, "command": "sort"}]}')
    for words in (("plan", "submit", str(plan)), ("resp", "keys", "add", "a-worker-with-quite-a-long-name")):
        assert holdfast(*words, "--url", url).code == 0, words


@pytest.mark.long
@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_list_fits_the_terminal(full: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in LISTS:
        for line in shown(full, *words):
            if words[:2] == ("queues", "show") and not line.startswith(("LANE", "job:")):
                continue  # what is shown of one thing is not a table
            assert cell_len(line) <= width, (words, line)
            assert line.isprintable(), (words, line)


def test_a_list_names_its_database(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # the name of a test's folder is long
    path = full.removeprefix("sqlite:///")
    for words in LISTS:
        if words not in (("settings",), ("lanes", "ls"), ("batches", "ls")) and words[1] != "show":
            assert shown(full, *words)[0].endswith(f" in sqlite {path}"), words
            assert shown(full, *words)[1].isupper(), words
    assert shown(full, "lanes", "ls") == [f"no lane is closed in sqlite {path}"]


def test_states_are_coloured_unless_somebody_asks_for_none(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32msucceeded" in seen(full, "jobs", "ls")
    assert "\x1b[2mjobs in" in seen(full, "jobs", "ls")
    assert "\x1b[32m" in seen(full, "doctor")
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (("jobs", "ls"), ("doctor",)):
        assert "\x1b[" not in seen(full, *words)


def test_wide_shows_whole_ids_and_times(full: str) -> None:
    piped = seen(full, "jobs", "ls", out=io.StringIO()).splitlines()
    assert [line.split() for line in shown(full, "jobs", "ls", "--wide")[1:]] == [line.split() for line in piped]
    assert "Z" not in shown(full, "jobs", "ls")[-1]


def test_a_pipe_gets_plain_text_whatever_the_width(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ago = re.compile(r"\d+s(?: ago)? *")
    for words in LISTS:
        monkeypatch.setenv("COLUMNS", "40")
        narrow = seen(full, *words, out=io.StringIO())
        monkeypatch.setenv("COLUMNS", "200")
        broad = seen(full, *words, out=io.StringIO())
        assert ago.sub("", narrow) == ago.sub("", broad), words
        assert narrow.replace("\n", "").isprintable(), words


def test_an_empty_list_says_what_to_do(empty: str) -> None:
    said = holdfast("jobs", "ls", "--url", empty)
    assert said.lines == ["no jobs"]
    assert said.err == "Enqueue one: `holdfast enqueue KIND`, or `await your_job.enqueue(…)` in your program.\n"
    assert holdfast("jobs", "ls", "--queue", "mial", "--url", empty).err.startswith("Nothing matches")


# Short ids


class Standing(SystemClock):
    """A clock at which all ids begin alike."""

    def wall_us(self) -> int:
        return int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1e6)


async def _crowd(url: str, jobs: int) -> list[str]:
    hf = Holdfast(url, ports=Ports(clock=Standing(), random=random.Random(3)), embedded=False)

    @hf.job(name="greet")
    async def greet() -> None: ...

    async with hf:
        return [(await greet.enqueue()).id for _ in range(jobs)]


async def test_a_short_id_of_a_list_names_one_job(place: Place) -> None:
    ids = await _crowd(place.url, 40)
    async with Holdfast(place.url, embedded=False) as app:
        length = await shortest(app, "job", ids[:3])
        assert len(ids[0]) > length > len("01a1e53e-a4bd-7")
        for id in ids[:3]:
            assert await whole(app, id[:length], "job") == id
            assert await whole(app, id[:length].replace("-", "").upper(), "job") == id
            assert await whole(app, id, "job") == id
        with pytest.raises(UsageError) as refused:
            await whole(app, ids[0][:8], "job")
        several = f"{', '.join(sorted(ids)[:5])} and others"
        assert str(refused.value) == f"{ids[0][:8]} is the beginning of several ids: {several}. Write more of the id."
        with pytest.raises(NotFound, match="there is no job whose id begins with 'ffffffff'"):
            await whole(app, "ffffffff", "job")
        assert await whole(app, "seven", "job") == "seven"


async def test_commands_take_short_ids(place: Place) -> None:
    (id,) = await _crowd(place.url, 1)
    assert holdfast("jobs", "show", id[:9], "--url", place.url, "--json").json["id"] == id
    assert holdfast("jobs", "why", id[:8], "--url", place.url).code == 0
    assert holdfast("jobs", "cancel", id[:8], "--url", place.url).lines == [f"{id} is cancelled"]
    assert (
        holdfast("jobs", "show", "feed", "--url", place.url).refused(2)
        == "there is no job whose id begins with 'feed'."
    )
    assert holdfast("jobs", "show", "seven", "--url", place.url).refused(2) == "'seven' is not a job id."
    assert holdfast("workers", "show", "feed", "--url", place.url).refused(2).startswith("there is no worker 'feed'")


async def test_a_token_is_revoked_by_its_short_id(place: Place) -> None:
    async with Holdfast(place.url, embedded=False) as hf:
        made = await hf.access.tokens.create("ci", role="viewer")
        short = made.id[: await shortest(hf, "token", [made.id])]
    assert len(short) < len(made.id)
    assert holdfast("tokens", "revoke", short, "--url", place.url).lines == [f"token {made.id} is revoked"]


async def test_ids_of_agents_are_short_and_top_shows_what_they_do(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    hf.script("claude-sonnet-5-5", Script(calls(call("ask"))))

    @hf.tool(effect="once", approve=True)
    def ask() -> str:
        """Ask."""
        return "yes"

    @hf.job(name="beside")
    async def beside() -> None: ...

    agent = hf.agent("guide", model="claude-sonnet-5-5", tools=[ask])
    async with hf:
        run = await agent.enqueue("please", session="cafe")
        await core_of(hf).make_worker(Role(until="empty")).run()
        row, session = await run.refresh(), await hf.sessions["cafe"].refresh()
        (inquiry,), budget = await hf.inquiries.list(), await hf.budgets.set("1", tenant="acme")
        for noun, id in {"run": row.id, "inquiry": inquiry.id, "budget": budget.id, "agent": row.agent}.items():
            assert await whole(hf, id[: await shortest(hf, noun, [id])], noun) == id
        assert await whole_session(hf, session.id[: await shortest(hf, "session", [session.id])]) == session.id
        assert await whole_session(hf, "cafe") == session.id, "a key goes before a short id"
        assert await whole_agent(hf, "guide") == "guide"
        other = await beside.enqueue()
        length = next(at for at, (a, b) in enumerate(zip(row.id, other.id, strict=True)) if a != b)
        assert await whole(hf, row.id[:length], "run", "job") == row.id, "a job that begins alike is no matter"
    (asked,) = holdfast("runs", "why", row.id[:length], "--url", place.url, "--json").json
    assert asked["gate"] == "person"
    told = holdfast("top", "--url", place.url, "--json").json
    (busy,) = told["agents"]
    assert (busy["agent"], busy["open"], busy["asking"], busy["turns"]) == ("guide", 1, 1, 1)
    assert (busy["cost_nano"] > 0, told["open_inquiries"]) == (True, 1)
    assert "approved" in holdfast("runs", "approve", inquiry.id[:8], "--url", place.url).out


async def test_a_whole_name_is_not_a_short_id(place: Place) -> None:
    async with Holdfast(place.url, embedded=False) as app:
        for id in ("cafe", "cafe-2"):
            await core_of(app).make_worker(Role(id=id, until="empty")).run()
        assert await whole(app, "cafe", "worker") == "cafe"


# A real terminal


@contextlib.contextmanager
def screen(columns: int) -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.long
def test_a_real_terminal_is_measured_and_a_pipe_needs_no_tables(full: str, tmp_path: Path) -> None:
    env = {name: value for name, value in environment(TERM="xterm").items() if name not in ("COLUMNS", "NO_COLOR")}
    with screen(72) as (ours, theirs):
        command = [sys.executable, "-m", "holdfast", "jobs", "ls", "--url", full]
        subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, timeout=PATIENCE, check=True)
        told = os.read(ours, 65_536).decode()
    lines = _SGR.sub("", told).splitlines()
    assert lines[0].startswith("jobs in ")
    assert lines[0].endswith("store.db")  # the middle of a long path is cut
    assert max(map(cell_len, lines)) <= 72
    counted = "import sys; from holdfast.cli import main\ntry: main()\nfinally: assert 'rich' not in sys.modules"
    assert run([sys.executable, "-c", counted, "jobs", "ls", "--url", full]).code == 0
