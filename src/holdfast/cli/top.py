"""`holdfast top`: queues, agents, workers, rates, money and failures, live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

import click

from holdfast.agents.lanes import list_lanes as closed_lanes
from holdfast.agents.listing_rows import AgentActivity, OpenInquiries
from holdfast.agents.money.budgets import usd
from holdfast.agents.overviews import agent_activity, open_inquiries
from holdfast.agents.rows import ClosedLane
from holdfast.agents.values import closed_lane_of
from holdfast.app import Holdfast, core_of
from holdfast.cli.logs import is_colored
from holdfast.cli.options import app_for, counted, json_option, over_cap, print_json, rough, url_option
from holdfast.cli.tables import ASCII, UNICODE, Cell, Glyphs, Line, Style, ansi, bar, clip, fit, spark, text
from holdfast.cli.target import database_label
from holdfast.durations import duration
from holdfast.errors import Unavailable
from holdfast.kernel import queries, watch
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.flow_rows import LaneRow
from holdfast.kernel.migrate import code_version
from holdfast.kernel.queues import QueueStats, list_lanes, queue_stats
from holdfast.kernel.rows import Change, DutyRow
from holdfast.kernel.states import WorkerState
from holdfast.kernel.workers import absent_workers, list_duties, list_workers
from holdfast.text import first_line, plural, shown
from holdfast.values import as_json as json_of
from holdfast.values.queues import counts_of, lane_of
from holdfast.values.workers import worker_of

# What `top` shows, as the store has it at one moment, and how fast each queue has moved lately.


BUCKET_US = 5_000_000
BUCKETS = 60
_RECOUNTED = 2  # who commits late has an earlier time
_FAILURES = 50
_FIRST_LOOK_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class StoreSample:
    """The store at one moment."""

    database: str
    schema: str
    epoch: int
    now: int
    queues: Sequence[QueueStats] = ()
    workers: Sequence[WorkerRow] = ()
    duties: Sequence[DutyRow] = ()
    lanes: Sequence[LaneRow] = ()
    closed: Sequence[ClosedLane] = ()
    failures: Sequence[Change] = ()
    agents: Sequence[AgentActivity] = ()
    inquiries: OpenInquiries = field(default_factory=OpenInquiries)
    history: dict[str, list[int]] = field(default_factory=dict)  # ended jobs by queue, in spans of 5 s, oldest first


class StoreSampler:
    """Asks the store; remembers what need not be asked again."""

    def __init__(self, app: Holdfast, database: str, schema: str) -> None:
        self._app = app
        self._database = database
        self._schema = schema
        self._counts: dict[int, dict[str, int]] = {}
        self._failures: dict[int, Change] = {}
        self._failed_since: int | None = None

    async def sample(self) -> StoreSample:
        database = core_of(self._app).runtime().database
        now = await database.transact(queries.now)
        await self._count(now)
        await self._find_failures(now)
        return StoreSample(
            database=self._database,
            schema=self._schema,
            epoch=await database.transact(watch.cluster_epoch),
            now=now,
            queues=await database.transact(queue_stats),
            workers=await database.transact(list_workers, all=False, limit=200, absent=await absent_workers(database)),
            duties=await database.transact(list_duties),
            lanes=[lane for lane in await database.transact(list_lanes) if lane.blocked],
            closed=await database.transact(closed_lanes),
            agents=await database.transact(agent_activity),
            inquiries=await database.transact(open_inquiries),
            failures=sorted(self._failures.values(), key=lambda change: -change.at),
            history=self._history(now),
        )

    async def _count(self, now: int) -> None:
        latest = now // BUCKET_US
        wanted = [
            bucket
            for bucket in range(latest - BUCKETS + 1, latest + 1)
            if bucket not in self._counts or bucket >= latest - _RECOUNTED
        ]
        spans = [(bucket * BUCKET_US, (bucket + 1) * BUCKET_US) for bucket in wanted]
        counted = await core_of(self._app).runtime().database.transact(watch.ended, spans)
        self._counts.update(zip(wanted, counted, strict=True))
        self._counts = {bucket: count for bucket, count in self._counts.items() if bucket > latest - BUCKETS}

    async def _find_failures(self, now: int) -> None:
        since = now - _FIRST_LOOK_US if self._failed_since is None else self._failed_since
        found = await core_of(self._app).runtime().database.transact(watch.failures, since=since, limit=_FAILURES)
        self._failed_since = now - BUCKET_US
        self._failures.update({change.seq: change for change in found})
        newest = sorted(self._failures.values(), key=lambda change: -change.at)[:_FAILURES]
        self._failures = {change.seq: change for change in newest}

    def _history(self, now: int) -> dict[str, list[int]]:
        latest = now // BUCKET_US
        names = {name for counts in self._counts.values() for name in counts}
        buckets = range(latest - BUCKETS + 1, latest)  # the last one is not over yet
        return {name: [self._counts.get(bucket, {}).get(name, 0) for bucket in buckets] for name in names}


# One frame of `top`: a sample of the store, laid out for a terminal of a given size. Pure.


PANELS = ("QUEUES", "AGENTS", "WORKERS", "LANES", "FAILURES")
_FOOTER = 1
_WIDE = 110


@dataclass(frozen=True, slots=True)
class FrameView:
    """How the person at the terminal wants to see it."""

    width: int
    height: int
    chosen: int = 0  # the panel that gets the room there is
    offset: int = 0  # how far it is scrolled
    paused: bool = False
    interval: float = 1.0
    trouble: str = ""  # why the store does not answer
    glyphs: Glyphs = UNICODE


class Panel(NamedTuple):
    head: Line
    rows: list[Line]


def frame(sample: StoreSample, look: FrameView) -> list[Line]:
    """As many lines as the terminal has rows, none longer than it has columns."""
    panels = [panel(sample, look) for panel in (_queues, _agents, _workers, _lanes, _failures)]
    lines = _header(sample, look)
    room = look.height - len(lines) - _FOOTER
    for number, (panel, share) in enumerate(zip(panels, _shares(panels, room, look.chosen), strict=True)):
        lines += _shown(panel, share, look, chosen=number == look.chosen)
    lines = lines[: look.height - _FOOTER]
    lines += [[] for _ in range(look.height - _FOOTER - len(lines))]
    return [clip(line, look.width) for line in [*lines, _footer(look)]]


def plain_frame(sample: StoreSample, width: int, glyphs: Glyphs = UNICODE) -> str:
    """Everything, as text without colours: for a pipe, or a look in passing."""
    tall = FrameView(width, 10_000, glyphs=glyphs, chosen=-1)
    lines = [text(line) for line in frame(sample, tall)[:-_FOOTER]]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)


def _header(sample: StoreSample, look: FrameView) -> list[Line]:
    clock = datetime.fromtimestamp(sample.now / 1e6, UTC).strftime("%H:%M:%S UTC")
    facts = f"schema {sample.schema} · epoch {sample.epoch} · {clock}"
    name = fit(sample.database, max(0, look.width - len(facts) - 10), glyphs=look.glyphs)
    first = [Cell("holdfast ", "title"), Cell(f"{name} "), Cell(facts, "dim")]
    if look.trouble:
        return [first, [Cell(f"the store does not answer: {look.trouble}", "bad")]]
    taking = [row for row in sample.workers if row.status == WorkerState.ACTIVE and not row.silent]
    busy, slots = sum(min(row.leases, row.slots) for row in taking), sum(row.slots for row in taking)
    done, failed = sum(row.succeeded for row in sample.queues), sum(row.failed for row in sample.queues)
    second = [
        Cell(plural(len(taking), "worker"), "good" if taking else "bad"),
        Cell(f" · {busy}/{slots} slots "),
        *bar(busy, slots, 20 if look.width < _WIDE else 40, look.glyphs),
        Cell(f" · {done:,} done/min"),
        Cell(f" · {failed:,} failed/min", "bad" if failed else "dim"),
    ]
    return [first, second, *_people_and_money(sample)]


def _people_and_money(sample: StoreSample) -> list[Line]:
    """What agents cost and whom they wait for; nothing where there are none."""
    asked, oldest = sample.inquiries
    if not sample.agents and not asked:
        return []
    runs, nano = sum(row.open for row in sample.agents), sum(row.cost_nano for row in sample.agents)
    waits = f", the oldest for {rough(sample.now - oldest)}" if oldest is not None else ""
    return [
        [
            Cell(plural(runs, "open run", more=over_cap(runs))),
            Cell(f" · {_usd(nano)} USD/min", "good" if nano else "dim"),
            Cell(
                f" · {plural(asked, 'open inquiry', 'open inquiries', more=over_cap(asked))}{waits}",
                "warn" if asked else "dim",
            ),
        ]
    ]


def _footer(look: FrameView) -> Line:
    state = "paused" if look.paused else f"every {look.interval:g} s"
    keys = " q quit   p pause   tab panel   ↑↓ scroll "
    return [Cell(fit(keys, max(0, look.width - len(state) - 1), glyphs=look.glyphs), "dim"), Cell(state, "dim")]


def _queues(sample: StoreSample, look: FrameView) -> Panel:
    busy_first = sorted(sample.queues, key=lambda row: (not _moves(row, sample), row.queue.name))
    name = _name_width([row.queue.name for row in busy_first], look, least=12, most=14 if look.width < _WIDE else 36)
    head = f"{fit('QUEUES', name + 2)} PENDING BLOCKED RUNNING   LATER  DONE/M FAIL/M  "
    left = max(0, look.width - len(head))
    minutes = BUCKETS * BUCKET_US // 60_000_000
    title = f"ENDED, LAST {minutes} MIN" if left >= 18 else "ENDED"
    return Panel([Cell(head + title, "head")], [_queue(row, sample, look, name, left) for row in busy_first])


def _queue(row: QueueStats, sample: StoreSample, look: FrameView, name: int, left: int) -> Line:
    paused = row.queue.paused_at is not None
    line: Line = [
        Cell(fit(row.queue.name, name, glyphs=look.glyphs), "warn" if paused else "plain"),
        Cell(f" {look.glyphs.paused}" if paused else "  ", "warn"),
        _count(row.pending, 8, "warn"),
        _count(row.blocked, 8, "warn"),
        _count(row.running, 8, "busy"),
        _count(row.later, 8, "plain"),
        _count(row.succeeded, 8, "good"),
        _count(row.failed, 7, "bad"),
        Cell("  "),
    ]
    if paused:
        reason = f": {row.queue.pause_reason}" if row.queue.pause_reason else ""
        since = rough(sample.now - (row.queue.paused_at or 0))
        return [*line, Cell(fit(f"paused {since}{reason}", left, glyphs=look.glyphs), "warn")]
    return [*line, *spark(sample.history.get(row.queue.name, []), min(left, BUCKETS), look.glyphs)]


def _agents(sample: StoreSample, look: FrameView) -> Panel:
    name = _name_width([row.agent for row in sample.agents], look, least=12, most=24 if look.width < _WIDE else 48)
    head = f"{fit('AGENTS', name)}    OPEN  ASKING  DONE/M  FAIL/M TURNS/M    USD/M"
    rows: list[Line] = [
        [
            Cell(fit(row.agent, name, glyphs=look.glyphs)),
            _count(row.open, 8, "busy"),
            _count(row.asking, 8, "warn"),
            _count(row.ended - row.failed, 8, "good"),
            _count(row.failed, 8, "bad"),
            _count(row.turns, 8, "plain"),
            Cell(fit(_usd(row.cost_nano), 9, right=True), "good" if row.cost_nano else "dim"),
        ]
        for row in sample.agents
    ]
    return Panel([Cell(head, "head")], rows)


def _workers(sample: StoreSample, look: FrameView) -> Panel:
    wide = look.width >= _WIDE
    name = _name_width([row.id for row in sample.workers], look, least=12, most=20 if not wide else 36)
    host = 10 if not wide else 20
    head = f"{fit('WORKERS', name)}  {fit('HOST', host)}  STATUS    {fit('BUSY', 20)}    BEAT  DUTIES"
    rows = [_worker(row, sample, look, name, host) for row in sample.workers]
    return Panel([Cell(head, "head")], rows or [[Cell("no worker is alive", "bad")]])


def _worker(row: WorkerRow, sample: StoreSample, look: FrameView, name: int, host: int) -> Line:
    silent = sample.now - row.heartbeat_at
    beat: Style = "bad" if row.silent else "warn" if silent > row.ttl_us // 2 else "plain"
    duties = " ".join(duty.name for duty in sample.duties if duty.holder == row.seq)
    only = json.loads(row.queues)
    ahead = f"+{row.leases - row.slots}" if row.leases > row.slots else ""  # claimed, and waiting for a slot
    serves = f"  only {', '.join(only)}" if only and look.width >= _WIDE else ""
    left = max(1, look.width - name - host - 44)  # columns behind those of all the others
    return [
        Cell(f"{fit(row.id, name, glyphs=look.glyphs)}  {fit(row.hostname, host, glyphs=look.glyphs)}  "),
        _status(row),
        Cell("  "),
        *bar(row.leases, row.slots, 10, look.glyphs),
        Cell(fit(f"{min(row.leases, row.slots)}/{row.slots}{ahead}", 10, right=True)),
        Cell(fit(rough(silent), 8, right=True), beat),
        Cell(f"  {fit(duties + serves, left, glyphs=look.glyphs)}", "dim"),
    ]


def _status(row: WorkerRow) -> Cell:
    if row.silent:
        return Cell(fit("silent", 8), "bad")
    return Cell(fit(row.status, 8), "good" if row.status == WorkerState.ACTIVE else "warn")


def _lanes(sample: StoreSample, look: FrameView) -> Panel:
    fullest = sorted(sample.lanes, key=lambda lane: (-lane.blocked, lane.name))
    names = [*(lane.name for lane in sample.closed), *(lane.name for lane in fullest)]
    name = _name_width(names, look, least=20, most=30 if look.width < _WIDE else 60)
    head = f"{fit('LANES THAT HOLD BACK', name)} RUNNING BLOCKED  RATE             OPENS"
    waiting = sorted(sample.closed, key=lambda lane: (not lane.person, lane.name))
    rows = [_closed(lane, sample, look, name) for lane in waiting]
    return Panel([Cell(head, "head")], rows + [_lane(lane, sample, look, name) for lane in fullest])


def _closed(lane: ClosedLane, sample: StoreSample, look: FrameView, name: int) -> Line:
    """A lane to a provider that nobody gets through."""
    style: Style = "bad" if lane.person else "warn"
    opens = f"by a person, for {rough(sample.now - lane.updated_at)}" if lane.person else None
    opens = opens or _until((lane.closed_until or sample.now) - sample.now)
    left = max(0, look.width - name - 36)
    return [
        Cell(fit(lane.name, name, glyphs=look.glyphs), style),
        Cell(fit("-", 8, right=True), "dim"),
        _count(lane.waiting, 8, "warn"),
        Cell(f"  {fit('closed', 15)}  "),
        Cell(fit(f"{opens}: {lane.reason}", left, glyphs=look.glyphs), style),
    ]


def _lane(lane: LaneRow, sample: StoreSample, look: FrameView, name: int) -> Line:
    full = lane.concurrency is not None and lane.running >= lane.concurrency
    running = str(lane.running) if lane.concurrency is None else f"{lane.running}/{lane.concurrency}"
    pace = "-" if lane.interval_us is None else _pace(lane.interval_us)
    opens = "when one ends" if full or lane.opens_at is None else _until(lane.opens_at - sample.now)
    return [
        Cell(fit(lane.name, name, glyphs=look.glyphs)),
        Cell(fit(running, 8, right=True), "warn" if full else "plain"),
        _count(lane.blocked, 8, "warn"),
        Cell(f"  {fit(pace, 15)}  {opens}"),
    ]


def _failures(sample: StoreSample, look: FrameView) -> Panel:
    queue = _name_width([f.queue for f in sample.failures], look, least=8, most=12 if look.width < _WIDE else 24)
    kind = _name_width([f.kind for f in sample.failures], look, least=8, most=20 if look.width < _WIDE else 36)
    head = f"{fit('FAILURES', 9)} {fit('QUEUE', queue)}  {fit('KIND', kind)}  MESSAGE"
    rows: list[Line] = []
    for failure in sample.failures:
        ago = f"{rough(sample.now - failure.at)} ago"
        rows.append(
            [
                Cell(fit(ago, 9), "dim"),
                Cell(f" {fit(failure.queue, queue, glyphs=look.glyphs)}"),
                Cell(f"  {fit(shown(failure.kind), kind, glyphs=look.glyphs)}"),
                Cell(f"  {fit(_message(failure), max(0, look.width - 14 - queue - kind), glyphs=look.glyphs)}", "bad"),
            ]
        )
    return Panel([Cell(head, "head")], rows or [[Cell("none in the last hour", "dim")]])


def _shares(panels: Sequence[Panel], room: int, chosen: int) -> list[int]:
    """How many lines each panel gets: a gap, its head, its rows. The chosen one is served first, then in turn."""
    wants = [2 + len(panel.rows) if panel.rows else 0 for panel in panels]
    shares = [min(3, want) for want in wants]
    order = sorted(range(len(panels)), key=lambda number: number != chosen)
    left = room - sum(shares)
    if 0 <= chosen < len(panels):
        given = max(0, min(left, wants[chosen] - shares[chosen]))
        shares[chosen] += given
        left -= given
    while left > 0 and any(share < want for share, want in zip(shares, wants, strict=True)):
        for number in order:
            if left > 0 and shares[number] < wants[number]:
                shares[number] += 1
                left -= 1
    return shares


def _shown(panel: Panel, share: int, look: FrameView, *, chosen: bool) -> list[Line]:
    if share < 2:
        return []
    fits = share - 2
    offset = min(look.offset, max(0, len(panel.rows) - fits)) if chosen else 0
    rows = panel.rows[offset : offset + fits]
    head = panel.head[0]
    hidden = len(panel.rows) - len(rows)
    rest = f" {hidden} more" if hidden else ""
    title = fit(head.text, max(0, look.width - len(rest))) + rest
    return [[], [Cell(title, "title" if chosen else head.style)], *rows]


def _count(jobs: int, width: int, style: Style) -> Cell:
    return Cell(fit(counted(jobs), width, right=True), style if jobs else "dim")


def _moves(row: QueueStats, sample: StoreSample) -> bool:
    live = row.pending or row.blocked or row.running or row.later or row.queue.paused_at is not None
    return bool(live or any(sample.history.get(row.queue.name, [])))


def _name_width(names: Sequence[str], look: FrameView, *, least: int, most: int) -> int:
    return max(least, min(most, max(map(len, names), default=0), look.width // 3))


def _until(us: int) -> str:
    return f"in {rough(us)}" if us >= 1_000_000 else "any moment"


def _pace(interval_us: int) -> str:
    """How often a lane lets one pass, in words that people count in."""
    rate = 60_000_000 / interval_us
    if rate < 1:
        return f"1 every {rough(interval_us)}"
    return f"{rate:,.0f}/min" if rate >= 100 else f"{rate:.3g}/min"


def _usd(nano: int) -> str:
    """Money at a glance: to the cent, or as far as it needs to be more than nothing."""
    return f"{nano / 1e9:,.2f}" if nano >= 10**8 or not nano else f"{nano / 1e9:,.4f}"


def _message(failure: Change) -> str:
    error = json.loads(failure.error) if failure.error else {}
    return shown(first_line(error.get("message", ""))) or "no message"


# A terminal while a program draws on it: keys come one by one, frames replace each other, and all is put back.


_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # another screen, no cursor
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_TOGETHER, _NOW = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show the frame at once
_KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[Z": "back", "\x1b[D": "back", "\x1b[C": "tab", "\t": "tab"}


class Screen:
    """Draws frames; wakes the reader of keys and size changes."""

    def __init__(self) -> None:
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._colored = is_colored(sys.stdout)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        return shutil.get_terminal_size()

    def draw(self, lines: list[Line]) -> None:
        """One write, so that no half of a frame is ever seen."""
        rows = "\r\n".join(f"{ansi(line, colored=self._colored)}\x1b[K" for line in lines)
        sys.stdout.write(f"{_TOGETHER}\x1b[H{rows}\x1b[J{_NOW}")
        sys.stdout.flush()

    async def key(self, within: float | None) -> str:
        """The next key, or "" when the size changed or the time is over."""
        try:
            async with asyncio.timeout(within):
                return await self._keys.get()
        except TimeoutError:
            return ""

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take the terminal; give it back as it was, whatever happens."""
        loop = asyncio.get_running_loop()
        keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
        before = None if keyboard is None else termios.tcgetattr(keyboard)
        try:
            self._enter(keyboard)
            loop.add_signal_handler(signal.SIGWINCH, self._keys.put_nowait, "")
            loop.add_signal_handler(signal.SIGCONT, self._enter, keyboard)  # back from Ctrl-Z
            loop.add_signal_handler(signal.SIGTERM, self._keys.put_nowait, "q")
            loop.add_signal_handler(signal.SIGINT, self._keys.put_nowait, "q")
            if keyboard is not None:
                loop.add_reader(keyboard, self._read, keyboard)
            yield
        finally:
            for number in (signal.SIGWINCH, signal.SIGCONT, signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if keyboard is not None:
                loop.remove_reader(keyboard)
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before or [])
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _enter(self, keyboard: int | None) -> None:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        self._keys.put_nowait("")

    def _read(self, keyboard: int) -> None:
        given = os.read(keyboard, 64).decode(errors="replace")
        if not given:
            self._keys.put_nowait("q")  # the terminal is gone
        elif given.startswith("\x1b["):
            self._keys.put_nowait(_KEYS.get(given[:3], ""))
        else:
            for char in given:
                self._keys.put_nowait(_KEYS.get(char, char))


@click.command()
@click.option("--interval", default="1s", show_default=True, help="Pause between reads of the store.")
@click.option("--once", is_flag=True, help="Print one frame as plain text; the default without a terminal.")
@url_option
@json_option
def command(interval: str, once: bool, url: str | None, as_json: bool) -> None:
    """Watch queues, agents, workers, rates, money and failures live.

    q quits, p pauses the refresh, tab selects the panel that gets the free space, arrows scroll it. It asks the
    store only bounded questions, so you can leave it open.
    """
    pause = duration(interval).total_seconds()
    app = app_for(url)
    if as_json:
        print_json(_as_dict(asyncio.run(_sample(app))))
    elif once or not sys.stdout.isatty():
        width = 100 if not sys.stdout.isatty() else Screen().size[0]
        click.echo(plain_frame(asyncio.run(_sample(app)), width, _glyphs()))
    else:
        asyncio.run(_watch(app, max(0.1, pause)))


async def _sample(app: Holdfast) -> StoreSample:
    async with app:
        return await sampler_for(app).sample()


async def _watch(app: Holdfast, interval: float) -> None:
    async with app:
        sampler = sampler_for(app)
        sample = await sampler.sample()  # what is wrong from the start is said on the usual screen
        screen = Screen()
        with screen.taken():
            await TopViewer(sampler, screen, interval, sample).run()


@dataclass
class TopViewer:
    """A person at a terminal, and what the store showed last."""

    sampler: StoreSampler
    screen: Screen
    interval: float
    sample: StoreSample

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        look = FrameView(*self.screen.size, interval=self.interval, glyphs=_glyphs())
        due = loop.time() + self.interval
        while True:
            width, height = self.screen.size
            look = replace(look, width=width, height=height)
            self.screen.draw(frame(self.sample, look))
            key = await self.screen.key(None if look.paused else max(0.0, due - loop.time()))
            if key == "q":
                return
            look = pressed(look, key)
            if not look.paused and loop.time() >= due:
                look = replace(look, trouble=await self._refresh())
                due = loop.time() + self.interval

    async def _refresh(self) -> str:
        """Look again; why that was impossible, if it was: then the last look stays."""
        try:
            self.sample = await self.sampler.sample()
        except Unavailable as problem:
            return str(problem)
        return ""


def pressed(look: FrameView, key: str) -> FrameView:
    """What a key does."""
    match key:
        case "p" | " ":
            return replace(look, paused=not look.paused)
        case "tab":
            return replace(look, chosen=(look.chosen + 1) % len(PANELS), offset=0)
        case "back":
            return replace(look, chosen=(look.chosen - 1) % len(PANELS), offset=0)
        case "down" | "j":
            return replace(look, offset=look.offset + 1)
        case "up" | "k":
            return replace(look, offset=max(0, look.offset - 1))
        case _:
            return look


def sampler_for(app: Holdfast) -> StoreSampler:
    dialect = core_of(app).runtime().database.dialect
    schema = f"{code_version(dialect)}" if dialect == "sqlite" else f"{app.settings.schema} {code_version(dialect)}"
    return StoreSampler(app, database_label(app.settings), schema)


def _glyphs() -> Glyphs:
    return UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII


def _as_dict(sample: StoreSample) -> dict[str, object]:
    return {
        "database": sample.database,
        "epoch": sample.epoch,
        "queues": [
            {**json_of(counts_of(row)), "history": sample.history.get(row.queue.name, [])} for row in sample.queues
        ],
        "workers": [worker_of(row) for row in sample.workers],
        "lanes": [lane_of(lane) for lane in sample.lanes],
        "closed_lanes": [closed_lane_of(lane) for lane in sample.closed],
        "agents": [{**row._asdict(), "cost": usd(row.cost_nano)} for row in sample.agents],
        "open_inquiries": sample.inquiries.n,
        "failures": [failure.id for failure in sample.failures],
    }
