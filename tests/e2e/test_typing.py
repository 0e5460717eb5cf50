"""What type checkers say of programs: right calls pass, wrong ones are named."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.commands import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

PROGRAM = """
import asyncio
from dataclasses import dataclass
from holdfast import Holdfast, Job, JobContext, Result, Retry, Run, ToolContext, Turn
from holdfast.agents.states import RunStateName
from holdfast.kernel.states import StateName
from holdfast.pools.stats import PoolStats
from holdfast.resp.server import RespServer
from holdfast.values import Page
from holdfast.workers.context import Child, StartedChild

hf = Holdfast()

@dataclass
class Invoice:
    number: str

@hf.tool
def look_up(word: str) -> str:
    return word

reader = hf.agent("reader", model="scripted:", output=Invoice, tools=[look_up])
plain_agent = hf.agent("plain", model="scripted:")

@hf.job
async def add(a: int, b: int = 1) -> int:
    return a + b

@hf.job(queue="images", timeout="2m", retry=Retry(attempts=5))
def resize(ctx: JobContext, url: str, width: int = 800) -> str:
    return ctx.step_sync("shrink", str.upper, url)

@hf.job
def halve(number: int) -> float:
    return number / 2

@hf.schedule("@daily")
async def report(ctx: JobContext) -> str:
    return str(ctx.id)

@hf.tool(effect="read")
async def translate(ctx: ToolContext, word: str) -> str:
    return word

async def main(ctx: JobContext, tool: ToolContext) -> None:
    summed: int = await add(1, b=2)
    shrunk: str = resize(ctx, "a.png", width=5)
    halved: float = halve(3)
    reported: str = await report(ctx)
    translated: str = await translate(tool, "cat")
    job: Job[int] = await add.enqueue(1, b=2)
    number: int = await job.result(timeout="5s")
    text: str = await resize.run("a.png", width=number)
    plain: str = resize.run_sync("a.png")
    page: str = await ctx.step("name", str.upper, "a")
    child: StartedChild[str] = await ctx.start(resize, "a.png", width=80)
    named: StartedChild[int] = ctx.start_sync(add, 1, step="sum")
    id: str = child
    children: list[Child] = await ctx.join()
    total: int = named.result

    result: Result[Invoice] = await reader.run("Read this.", session="a")
    invoice: Invoice = result.output
    run: Run[str] = await plain_agent.enqueue("Hello", key="k")
    said: str = (await run.result()).output
    called: str = look_up("cat")
    many: list[Run[str]] = await plain_agent.enqueue_many(["a", "b"], key=str, priority=5)
    sent: Run[str] = await hf.session("a").send("Hello", plain_agent, during="steer", variables={"a": 1})
    theirs: Run[Invoice] = await hf.tenant("acme").enqueue(reader, "Read this.", session="a")
    state: RunStateName | None = run.state
    cancelled: StateName = await job.cancel()
    turns: Page[Turn] = await run.turns(limit=10)
    article = hf.machine("article.yml", output=Invoice, queue="texts")
    written: Invoice = await article.run({"title": "Rain"})
    server: RespServer = hf.resp("127.0.0.1:0", pop_form="array")
    kept: Page[PoolStats] = await hf.pools.list()
    token: str = (await hf.access.tokens.create("ci", role="viewer")).secret
    await hf.agents.create("clerk", model="scripted:", tools=["look_up"], limits={"turns": 3})

    @hf.schedule("@daily", queue="images")
    async def nightly() -> None: ...

    await add("one")  # wrong
    no_number: str = await add(1)  # wrong
    resize("a.png")  # wrong
    no_text: str = halve(3)  # wrong
    await halve(3)  # wrong
    no_bool: bool = await report(ctx)  # wrong
    await translate("cat")  # wrong
    await add.enqueue("one")  # wrong
    await add.enqueue()  # wrong
    await add.enqueue(1, c=2)  # wrong
    await resize.enqueue(ctx, "a.png")  # wrong
    wrong: str = await job.result()  # wrong
    await ctx.step("name", str.upper, 5)  # wrong
    hf.job(queue=5)  # wrong
    other: str = result.output  # wrong
    look_up(5)  # wrong
    await ctx.start(resize, 5)  # wrong
    await ctx.start(resize)  # wrong
    await ctx.start(resize, "a.png", heigth=5)  # wrong
    other_total: str = named.result  # wrong
    add.options(qeue="images")  # wrong
    await plain_agent.enqueue("Hello", sesion="a")  # wrong
    await plain_agent.enqueue_many(["a"], session="a")  # wrong
    await hf.session("a").send("Hello", plain_agent, tool="x")  # wrong
    await hf.tenant("acme").enqueue(reader, "Read this.", tenant="other")  # wrong
    hf.schedule("@daily", qeue="images")  # wrong
    await hf.agents.create("clerk")  # wrong
    await hf.agents.update("clerk", modle="scripted:")  # wrong
    ended: bool = run.state == "complete"  # wrong
    gone: bool = (await hf.jobs.get(job.id)).state == "done"  # wrong
    hf.agent("x", model="scripted:", tools=[5])  # wrong
    hf.machine("article.yml", qeue="texts")  # wrong
    no_invoice: str = await article.run()  # wrong
    hf.resp(pop_form="list")  # wrong
    await hf.pools.lst()  # wrong
    await hf.access.tokens.create("ci", role="queen")  # wrong
    hf.agent("x", model="scripted:", effort="high")  # wrong
"""


WRONG = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


@pytest.mark.long
def test_mypy_checks_arguments_and_results(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    said = run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            f"--cache-dir={ROOT / '.mypy_cache'}",
            str(file),
        ],
        cwd=ROOT,
    )
    named = {int(number) for number in re.findall(r"program\.py:(\d+): error", said.out)}
    assert named == WRONG, said.out


@pytest.mark.long
def test_pyright_checks_arguments_and_results_and_accepts_the_examples(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for example in EXAMPLES.glob("*.py"):
        if example.name != "transactions.py":  # apsw's own types are partly unknown to it
            shutil.copy(example, tmp_path)
    unused = {"reportUnusedImport": False, "reportUnusedVariable": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", **unused}))
    said = run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=tmp_path,
    )
    problems = json.loads(said.out)["generalDiagnostics"]
    named = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in problems}
    assert named == {("program.py", number) for number in WRONG}, said.out
