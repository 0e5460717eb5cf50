"""What type checkers say of programs: right calls pass, wrong ones are named."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from tests.support.commands import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

PROGRAM = """
import asyncio
from dataclasses import dataclass
from holdfast import Holdfast, Job, JobContext, Result, Retry, Run

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

async def main(ctx: JobContext) -> None:
    job: Job[int] = await add.enqueue(1, b=2)
    number: int = await job.result(timeout="5s")
    text: str = await resize.run("a.png", width=number)
    plain: str = resize.run_sync("a.png")
    page: str = await ctx.step("name", str.upper, "a")
    child: str = await ctx.start(resize, "a.png")

    result: Result[Invoice] = await reader.run("Read this.", session="a")
    invoice: Invoice = result.output
    run: Run[str] = await plain_agent.enqueue("Hello", key="k")
    said: str = (await run.result()).output
    called: str = look_up("cat")

    await add.enqueue("one")  # wrong
    await add.enqueue()  # wrong
    await add.enqueue(1, c=2)  # wrong
    await resize.enqueue(ctx, "a.png")  # wrong
    wrong: str = await job.result()  # wrong
    await ctx.step("name", str.upper, 5)  # wrong
    hf.job(queue=5)  # wrong
    other: str = result.output  # wrong
    look_up(5)  # wrong
    hf.agent("x", model="scripted:", tools=[5])  # wrong
    hf.agent("x", model="scripted:", effort="high")  # wrong
"""


WRONG = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


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
