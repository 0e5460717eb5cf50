"""Walks through the code: which modules one call passes, from the caller to the result, on SQLite.

`python tools/walks.py [WALK …]` traces each walk a few times and prints, module by module, which functions were called,
and how often the walk crossed from one module into another. What timers do beside a walk is no part of it, nor is a
module that only some of the walks pass. `make docs` writes two of the lists into docs/architecture.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.models import Script, call, say

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PAGE = ROOT / "docs" / "architecture.md"
_LIST = re.compile(r"<!-- walk: (\w+) -->\n(.*?)<!-- end of walk -->", re.DOTALL)

TIMES = 5
REST = 0.5  # seconds before each walk, in which what follows from the walk before it comes to an end
LOOK = 3.0  # seconds in which the calls of an app that rests are heard

Step = Callable[[], Awaitable[object]]
Walk = Callable[[Path], AbstractAsyncContextManager[Step]]


class Heard(NamedTuple):
    """A call of a function of ours. `caller` is None in a callback of the loop, and at the bottom of a thread."""

    caller: tuple[str, str] | None
    module: str
    function: str


class Passed(NamedTuple):
    """One walk: the functions called in each module, in the order in which it was first met; and the crossings."""

    calls: Mapping[str, Sequence[str]]
    crossings: int

    @classmethod
    def of(cls, heard: Sequence[Heard], timers: Collection[Heard]) -> Passed:
        """Without what timers did: a call that an app at rest makes too counts only when the walk makes it."""
        functions: set[tuple[str, str] | None] = set()
        todo = {(each.module, each.function) for each in heard if each not in timers}
        while todo:
            functions |= todo
            todo = {(each.module, each.function) for each in heard if each.caller in todo} - functions
        calls: dict[str, list[str]] = {}
        walked = [each for each in heard if each not in timers or each.caller in functions]
        for each in walked:
            calls.setdefault(each.module, []).append(each.function)
        return cls(calls, sum(each.caller is None or each.caller[0] != each.module for each in walked))


class Walked(NamedTuple):
    """A walk that was done several times. `always` is what it passed each time, `ever` what it passed at least once."""

    always: Sequence[str]
    ever: Sequence[str]
    typical: Passed


class Tracer:
    """Hears every call of a function of ours, on every thread that starts after it. Off until `watching`."""

    def __init__(self) -> None:
        self._heard: list[Heard] = []
        self._on = False
        threading.setprofile(self._hear)

    async def watching(self, step: Step) -> Sequence[Heard]:
        self._heard, self._on = [], True
        sys.setprofile(self._hear)
        try:
            await step()
        finally:
            sys.setprofile(None)
            self._on = False
        return self._heard

    def _hear(self, frame: FrameType, event: str, _: object) -> None:
        if not self._on or event != "call" or (module := _module_of(frame)) is None:
            return
        if frame.f_code.co_name != "<module>":
            self._heard.append(Heard(_caller_of(frame), module, frame.f_code.co_qualname))


def _module_of(frame: FrameType) -> str | None:
    return _name_of(frame.f_code.co_filename)


@cache
def _name_of(filename: str) -> str | None:
    """A module of ours as the page writes it: `workers/claims`."""
    file = Path(filename)
    return (
        str(file.relative_to(SOURCE).with_suffix("")).removesuffix("/__init__") if file.is_relative_to(SOURCE) else None
    )


def _caller_of(frame: FrameType) -> tuple[str, str] | None:
    """What of ours called, perhaps through a library: its module and function."""
    before = frame.f_back
    while before is not None and "/asyncio/" not in before.f_code.co_filename:
        if (module := _module_of(before)) is not None:
            return module, before.f_code.co_qualname
        before = before.f_back
    return None


@asynccontextmanager
async def a_job(folder: Path) -> AsyncIterator[Step]:
    """Enqueue a job and wait for its result, with a worker in the same process."""
    hf = Holdfast(f"sqlite:///{folder}/job.db")

    @hf.job
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def step() -> None:
        assert await (await greet.enqueue("ann")).result() == "hello ann"

    async with hf:
        yield step


@asynccontextmanager
async def a_run(folder: Path) -> AsyncIterator[Step]:
    """Enqueue a run of an agent that calls one tool, and follow its events until its answer is there."""
    hf = Holdfast(f"sqlite:///{folder}/run.db")

    @hf.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    hf.script("sums", Script(call("add", a=1, b=2), say("three")))
    agent = hf.agent("calculator", model="scripted:sums", tools=[add])

    async def step() -> None:
        run = await agent.enqueue("What is 1 + 2?")
        async for _ in run.stream():
            pass
        assert (await run.result()).text == "three"

    async with hf:
        yield step


@asynccontextmanager
async def brpop(folder: Path) -> AsyncIterator[Step]:
    """Pop a job with a Redis client."""
    hf = Holdfast(f"sqlite:///{folder}/resp.db")
    worker: dict[str, Any] = {"worker_id": "w1", "hostname": "h", "agw_version": "0.1.0", "capabilities": {"tools": []}}
    worker["max_concurrent_jobs"] = TIMES + 1
    async with hf, hf.resp("127.0.0.1:0", workers={"w1": "01" * 32}) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def say_to_it(*words: str) -> bytes:
            parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
            writer.write(f"*{len(words)}\r\n{''.join(parts)}".encode())
            await writer.drain()
            return await reader.read(65_536)

        async def step() -> None:
            answer = await say_to_it("BRPOP", "queue:mail", "2")
            assert b"hello" in answer, answer

        await say_to_it("AUTH", "w1", "01" * 32)
        await say_to_it("WORKER.REGISTER", json.dumps(worker))
        for _ in range(TIMES + 1):
            await say_to_it("LPUSH", "queue:mail", "hello")
        yield step
        writer.close()


@asynccontextmanager
async def a_request(folder: Path) -> AsyncIterator[Step]:
    """Start a run over HTTP: `POST /api/v1/runs`, until the response."""
    hf = Holdfast(f"sqlite:///{folder}/web.db", embedded=False)
    hf.script("answer", Script(say("three")))
    hf.agent("calculator", model="scripted:answer")
    app = hf.web()
    token = (await hf.access.tokens.create("ci", role="operator")).secret
    body = json.dumps({"agent": "calculator", "prompt": "1 + 2"}).encode()
    headers = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {token}"}
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/runs",
        "raw_path": b"/api/v1/runs",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }

    async def step() -> None:
        given = iter([{"type": "http.request", "body": body, "more_body": False}])
        answers: list[Mapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            found = next(given, None)
            return found if found is not None else await asyncio.Future()

        async def send(message: Mapping[str, Any]) -> None:
            answers.append(message)

        await app(dict(scope), receive, send)
        assert answers[0]["status"] == 201, answers

    async with hf:
        yield step


MACHINE = """\
spec: flatmachine
spec_version: "0.8.3"
data:
  name: article
  states:
    start: {type: initial, transitions: [{to: write}]}
    write: {action: write_draft, output_to_context: {draft: "{{ output.draft }}"}, transitions: [{to: done}]}
    done: {type: final, output: {draft: "{{ context.draft }}"}}
"""


@asynccontextmanager
async def a_machine(folder: Path) -> AsyncIterator[Step]:
    """Run a machine with one action."""
    hf = Holdfast(f"sqlite:///{folder}/machine.db")
    file = folder / "article.yml"
    file.write_text(MACHINE)

    async def hooks(action: str, context: dict[str, Any]) -> dict[str, Any]:
        return {**context, "draft": "x"}

    machine = hf.machine(file, hooks=hooks)

    async def step() -> None:
        assert await machine.run({}) == {"draft": "x"}

    async with hf:
        yield step


WALKS: Mapping[str, Walk] = {
    "job": a_job,
    "run": a_run,
    "brpop": brpop,
    "request": a_request,
    "machine": a_machine,
}


async def walk(name: str, tracer: Tracer) -> Walked:
    """Do a walk `TIMES` times, after a first time that opens what is opened once."""
    with tempfile.TemporaryDirectory() as folder:
        async with WALKS[name](Path(folder)) as step:
            await step()
            heard = []
            for _ in range(TIMES):
                await asyncio.sleep(REST)
                heard.append(await tracer.watching(step))
            await asyncio.sleep(REST)
            timers = set(await tracer.watching(partial(asyncio.sleep, LOOK)))
    passed = [Passed.of(each, timers) for each in heard]
    sets = [each.calls.keys() for each in passed]
    typical = min(passed, key=lambda each: each.crossings)
    return Walked(sorted(set.intersection(*map(set, sets))), sorted(set().union(*sets)), typical)


def walked(names: Iterable[str]) -> dict[str, Walked]:
    tracer = Tracer()
    return {name: asyncio.run(walk(name, tracer)) for name in names}


def architecture() -> str:
    """The page, with its lists of modules made anew."""
    text = PAGE.read_text()
    names = _LIST.findall(text)
    for name, found in walked(name for name, _ in names).items():
        text = re.sub(rf"(<!-- walk: {name} -->\n).*?(?=<!-- end)", rf"\1{_list(found)}\n", text, flags=re.DOTALL)
    return text


def listed() -> dict[str, list[str]]:
    """The modules that the page lists for each walk."""
    found = {}
    for name, lines in _LIST.findall(PAGE.read_text()):
        packages = re.findall(r"^- (?:`([\w/]+/)`: )?(.*)$", lines, re.MULTILINE)
        found[name] = [package + module for package, row in packages for module in re.findall(r"`(\w+)`", row)]
    return found


def _list(found: Walked) -> str:
    by_package: dict[str, list[str]] = {}
    for module in found.always:
        package, slash, name = module.rpartition("/")
        by_package.setdefault(package + slash, []).append(f"`{name}`")
    rows = [
        f"- {f'`{package}`: ' if package else ''}{', '.join(names)}" for package, names in sorted(by_package.items())
    ]
    crossings = round(found.typical.crossings, -2)
    return (
        f"It passes {len(found.always)} modules, and crosses from one to another about {crossings:,} times:\n\n"
        + "\n".join(rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"default: all of {', '.join(WALKS)}")
    parser.add_argument("--json", action="store_true", help="print only the modules: those of every time, of any time")
    given = parser.parse_args()
    if unknown := set(given.walks) - WALKS.keys():
        parser.error(f"no walk is called {', '.join(sorted(unknown))}")
    found = walked(given.walks or WALKS)
    if given.json:
        print(json.dumps({name: {"always": each.always, "ever": each.ever} for name, each in found.items()}))
        return
    for name, each in found.items():
        doc = (WALKS[name].__doc__ or "").strip()
        calls = sum(map(len, each.typical.calls.values()))
        print(f"{name}: {doc} {len(each.always)} modules, {calls:,} calls, {each.typical.crossings:,} crossings")
        for module, functions in each.typical.calls.items():
            mark = "" if module in each.always else " (not every time)"
            print(f"  {module} {len(functions)}{mark}: {', '.join(dict.fromkeys(functions))}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
