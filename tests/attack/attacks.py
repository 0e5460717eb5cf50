"""The attacks on a real `holdfast serve` and `holdfast resp` on loopback, each bounded in count and time.

The matrix of roles, the templates and the MCP servers are tried in this process, on stores of their own: they need a
program that declares something. The bystander asks the two servers all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlsplit

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import HoldfastError
from holdfast.http.pages.layout import PLACES
from holdfast.kernel.retry import RetryPolicy
from holdfast.machines.meter import TemplateError
from holdfast.machines.templates import BadTemplate, compile_template
from holdfast.models.script import Script, call, say
from holdfast.resp import keys
from holdfast.resp.client import ANY, KeyPrincipal, digest_of, new_key
from tests.http.attachments import attachments, problems_of
from tests.http.browsing import Seen
from tests.http.foreign import By, World
from tests.http.full_store import FullStore
from tests.http.matrix import HOST, Matrix
from tests.http.renaming import rename
from tests.http.test_hostile_attachments import odd_in
from tests.http.test_payloads import PAYLOADS, texts
from tests.machines.test_templates import NAMES
from tests.machines.test_templates import PAYLOADS as TEMPLATES
from tests.resp.fuzz import mutated
from tests.support.apps import settings_with

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "hostile_mcp.py"
TOGETHER = 64  # connections at once
REFUSED_SERVERS = ("names", "twice", "no object", "endless list")
SERVERS = (
    *("slow pattern", "endless line", "wide", "deep answer", "huge", "flood", "wrong ids", "questions", "odd"),
    *("half a character", "greeting", "silent", "loop", "deep", "words"),
)


class Size(NamedTuple):
    """How much of each attack, and how many seconds each may take at most."""

    frames: int
    payloads: int
    pages: int
    parts: int  # of the matrix: each cell asks every so many of the routes
    templates: int
    servers: tuple[str, ...]
    rounds: int  # of the attachments
    seconds: float


FULL = Size(200_000, 500, 600, 1, len(TEMPLATES), SERVERS, 5, 150)
SAMPLE = Size(500, 8, 12, 60, 10, ("slow pattern", "wrong ids"), 1, 30)


@dataclass
class Outcome:
    tried: int = 0
    wrong: list[str] = field(default_factory=list)
    note: str = ""


@dataclass
class Stage:
    """The two servers, and who may come in."""

    folder: Path
    http: int
    resp: int
    token: str
    key: str
    size: Size
    chance: random.Random


def hostile(count: int) -> list[str]:
    """So many payloads: those of the file, then the same after what would end an attribute, a comment or a text."""
    before = ("", '">', "'>", "-->", "x\t", "&#60;", "</script>")
    return [f"{first}{each}" for first in before for each in PAYLOADS][:count]


async def attack(size: Size, seed: int) -> list[str]:
    """Everything that went wrong. The table is printed."""
    print(f"seed {seed}")
    parts: dict[str, Callable[[Stage], Awaitable[Outcome]]] = {
        "mutated RESP frames": frames,
        "payloads on every page": pages,
        "roles and tenants": roles,
        "templates": templates,
        "MCP servers": servers,
        "attachments": files,
    }
    lines, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with _stage(Path(folder), size, seed) as (stage, measured):
            await measured()
            for name, part in parts.items():
                begun = time.monotonic()
                outcome = await part(stage)
                seen = await measured()
                outcome.wrong += seen["wrong"]
                p99 = "  ".join(f"{seen['p99'].get(each, float('nan')):8.1f}" for each in ("healthz", "page", "ping"))
                took = time.monotonic() - begun
                lines.append(f"{name:24}{outcome.tried:>9,}{len(outcome.wrong):>7}{took:>8.1f}  {p99}  {outcome.note}")
                print(lines[-1], flush=True)
                wrong += [f"{name}: {each}" for each in outcome.wrong]
    head = f"{'attack':24}{'tried':>9}{'wrong':>7}{'s':>8}   p99 ms: healthz      page      ping"
    print("\n".join(["", head, *lines, "", *(each[:600] for each in wrong[:30])]))
    return wrong


@asynccontextmanager
async def _stage(
    folder: Path, size: Size, seed: int
) -> AsyncIterator[tuple[Stage, Callable[[], Awaitable[dict[str, Any]]]]]:
    file = folder / "store.db"
    payloads = hostile(size.payloads)
    async with Holdfast(f"sqlite:///{file}", settings=settings_with(drain_grace="5s"), embedded=False) as hf:
        told = texts(payloads)
        await FullStore(hf, folder, told, rows=len(told)).fill()
    rename(file, payloads)
    url, key = f"sqlite:///{file}", new_key()
    async with Holdfast(url, embedded=False) as hf:
        token = (await hf.access.tokens.create("attacker", role="admin")).secret
        await hf.agents.create("reader", model="scripted:x")
        database = await core_of(hf).opened()
        principal = KeyPrincipal("attacker", digest_of(key.encode()), (ANY,), commands=("PING",))
        await database.transact(keys.add_key, principal)
    serve = _server("serve", "--bind", "127.0.0.1:0", "--url", url)
    resp = _server("resp", "--bind", "127.0.0.1:0", "--url", url)
    try:
        http_port, resp_port = [await asyncio.to_thread(_port, each) for each in (serve, resp)]
        words = [str(http_port), str(resp_port), token, key]
        bystander = subprocess.Popen(  # noqa: ASYNC220  it returns at once
            [sys.executable, "-m", "tests.attack.bystander", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def since() -> dict[str, Any]:
            assert bystander.stdin is not None
            assert bystander.stdout is not None
            print("now", file=bystander.stdin, flush=True)
            seen: dict[str, Any] = json.loads(bystander.stdout.readline())
            for each in (serve, resp):
                if each.poll() is not None:
                    seen["wrong"].append(f"a server has ended with {each.returncode}")
            return seen

        try:
            yield (
                Stage(folder, http_port, resp_port, token, key, size, random.Random(seed)),
                lambda: asyncio.to_thread(since),
            )
        finally:
            bystander.kill()
            bystander.communicate()
    finally:
        for each in (serve, resp):
            each.terminate()
            each.communicate()


def _server(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, text=True)


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"127\.0\.0\.1:(\d+)", line)
    assert found is not None, f"a server says {line!r}"
    return int(found[1])


async def frames(stage: Stage) -> Outcome:
    """Each on a connection of its own, from its own address; half of them after AUTH."""
    outcome, until = Outcome(), time.monotonic() + stage.size.seconds
    auth = b"*2\r\n$4\r\nAUTH\r\n$64\r\n" + stage.key.encode() + b"\r\n"
    left = iter(range(stage.size.frames))

    answered = 0

    async def send() -> None:
        nonlocal answered
        for number in left:
            if time.monotonic() > until:
                return
            data = mutated(stage.chance)
            outcome.tried += 1
            answer = await _exchange(stage.resp, (auth if number % 2 else b"") + data, number)
            answered += bool(answer)
            if answer is None or answer[:1] not in (b"", b"+", b"-", b":", b"$", b"*", b"%", b"_"):
                outcome.wrong.append(f"frame {number} {data[:100]!r} is answered with {answer and answer[:100]!r}")

    await asyncio.gather(*(send() for _ in range(TOGETHER)))
    outcome.note = f"{answered:,} have an answer"
    if outcome.tried < stage.size.frames:
        outcome.note += f"; time was over before {stage.size.frames:,}"
    return outcome


async def _exchange(port: int, data: bytes, number: int) -> bytes | None:
    """What the server says until it closes; None if it does not close in time."""
    loop = asyncio.get_running_loop()
    with socket.socket() as link:
        link.setblocking(False)
        link.bind((f"127.{1 + number // 60_000 % 200}.{number // 250 % 240}.{1 + number % 250}", 0))
        try:
            async with asyncio.timeout(30):
                await loop.sock_connect(link, ("127.0.0.1", port))
                await loop.sock_sendall(link, data)
                link.shutdown(socket.SHUT_WR)
                said = b""
                while piece := await loop.sock_recv(link, 1 << 16):
                    said = (said + piece)[:1_000]
                return said
        except TimeoutError:
            return None
        except OSError:  # it was closed while this side was sending
            return b""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def _asked(stage: Stage, method: str, path: str, body: bytes = b"", accept: str = "text/html") -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.http, limit=1 << 26)
    try:
        about = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {stage.token}"]
        about += [f"accept: {accept}", "content-type: application/json", f"content-length: {len(body)}"]
        writer.write("\r\n".join([*about, "connection: close", "", ""]).encode() + body)
        async with asyncio.timeout(60):
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split()[1]), headers, rest)


async def pages(stage: Stage) -> Outcome:
    """Every page that links lead to, in a store whose texts and names are payloads."""
    outcome, until = Outcome(note=f"{stage.size.payloads} payloads"), time.monotonic() + stage.size.seconds
    todo, seen = [place.path for place in PLACES], set[str]()
    while todo and len(seen) < stage.size.pages and time.monotonic() < until:
        link = todo.pop(stage.chance.randrange(len(todo)))
        if link in seen:
            continue
        seen.add(link)
        answer = await _asked(stage, "GET", link)
        while answer.status == 429:
            await asyncio.sleep(0.2)
            answer = await _asked(stage, "GET", link)
        outcome.tried += 1
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        odd = odd_in(answer.body) if is_page else []
        if answer.status != 200 or odd:
            outcome.wrong.append(f"{link} is answered with {answer.status} and has {odd}")
        if not is_page:
            outcome.wrong += problems_of(link, answer.status, answer.headers, answer.body, odd)
            continue
        for found in Seen(answer.body.decode(errors="replace")).followed:
            split = urlsplit(found)
            if not split.netloc and not split.query and split.path.startswith("/"):
                todo += [] if split.path.startswith(("/api/", "/assets/")) else [split.path]
    return outcome


async def roles(stage: Stage) -> Outcome:
    outcome = Outcome(note="in this process")
    kinds: tuple[By, ...] = ("principal", "metadata")
    for by in kinds:
        folder = stage.folder / by
        folder.mkdir()
        with mock.patch("socket.gethostname", return_value=HOST):
            url = f"sqlite:///{folder / 'store.db'}"
            async with Holdfast(url, settings=settings_with(drain_grace="5s"), embedded=False) as hf:
                matrix = Matrix(World(hf, folder, by), folder)
                await matrix.fill()
                totals = await matrix.run(0, stage.size.parts)
        outcome.tried += totals.requests
        outcome.wrong += totals.wrong
    return outcome


async def templates(stage: Stage) -> Outcome:
    outcome = Outcome(note="in this process")
    for text in stage.chance.sample(TEMPLATES, stage.size.templates):
        outcome.tried += 1
        begun = time.process_time()
        try:
            made = await asyncio.to_thread(_rendered, text)
            outcome.wrong.append(f"{text[:200]!r} gives {str(made)[:100]!r}")
        except (BadTemplate, TemplateError):
            pass
        if time.process_time() - begun > 5:
            outcome.wrong.append(f"{text[:200]!r} takes more than 5 s")
    return outcome


def _rendered(text: str) -> object:
    return compile_template(text).render(NAMES)


async def servers(stage: Stage) -> Outcome:
    """An agent calls each of them while another job of the same worker is done."""
    outcome = Outcome()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    url = f"sqlite:///{stage.folder / 'agents.db'}"
    refused = [kind for kind in REFUSED_SERVERS if len(stage.size.servers) > 2]
    for kind in (*refused, *stage.size.servers):
        outcome.tried += 1
        async with Holdfast(url, settings=settings_with(drain_grace="5s")) as hf:
            problem = await _served(hf, kind)
        if problem != (kind in REFUSED_SERVERS):
            outcome.wrong.append(f"a server of kind {kind!r} is {'refused' if problem else 'taken'}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1_024
    outcome.note = f"memory grew by {grown} MB"
    if grown > 700:
        outcome.wrong.append(outcome.note)
    return outcome


async def _served(hf: Holdfast, kind: str) -> bool:
    """Whether the server was refused. If not, the run has ended, and so has another job meanwhile."""

    @hf.job
    async def beside() -> str:
        return "done"

    try:
        command = [sys.executable, str(SCRIPT), kind]
        tools = await hf.mcp("bad", command=command, retry=RetryPolicy.none(), timeout="5s")
    except HoldfastError:
        return True
    hf.script("victim", Script(call("bad_go", text="x"), say("done")))
    agent = hf.agent("victim", model="scripted:victim", tools=list(tools))
    async with asyncio.timeout(120):
        running = asyncio.create_task(agent.run("Go"))
        assert await (await beside.enqueue()).result() == "done"
        assert (await running).text == "done"
    return False


async def files(stage: Stage) -> Outcome:
    """Each attachment as a run of its own; then every answer about those that were taken."""
    outcome = Outcome()
    for given in attachments() * stage.size.rounds:
        body = json.dumps({"agent": "reader", "prompt": [given.block, {"type": "text", "text": "Read."}]}).encode()
        answer = await _asked(stage, "POST", "/api/v1/runs", body, "application/json")
        outcome.tried += 1
        if (answer.status < 300) != given.taken or answer.status >= 500:
            outcome.wrong.append(f"{given.name} is answered with {answer.status}: {answer.body[:200]!r}")
        elif given.taken:
            outcome.wrong += await _about(stage, json.loads(answer.body), outcome)
    huge = await _asked_huge(stage)
    outcome.tried += 1
    outcome.wrong += [] if huge in (413, 0) else [f"a body of 64 MB is answered with {huge}"]
    return outcome


async def _about(stage: Stage, run: dict[str, Any], outcome: Outcome) -> list[str]:
    found = []
    paths = [f"/runs/{run['id']}", f"/sessions/{run['session']}", f"/jobs/{run['id']}"]
    paths += [f"/api/v1{each}" for each in paths] + [f"/api/v1/sessions/{run['session']}/messages"]
    for path in paths:
        answer = await _asked(stage, "GET", path, accept="*/*" if path.startswith("/api") else "text/html")
        outcome.tried += 1
        kind = answer.headers.get("content-type", "")
        odd = odd_in(answer.body) if kind.startswith("text/html") else []
        found += problems_of(path, answer.status, answer.headers, answer.body, odd)
    await asyncio.sleep(0.2)  # as many as one principal may ask
    return found


async def _asked_huge(stage: Stage) -> int:
    """The status of the answer; 0: the connection was closed."""
    with contextlib.suppress(OSError, IndexError):
        return (await _asked(stage, "POST", "/api/v1/runs", b"[" * (64 << 20), "application/json")).status
    return 0
