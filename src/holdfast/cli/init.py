"""`holdfast init`: a small project to begin with, and what to type next. It never changes what is there."""

from __future__ import annotations

import keyword
import sys
import tomllib
from pathlib import Path

import click

from holdfast.errors import UsageError

PROGRAM = '''"""A job, a schedule and an agent that survive crashes.

`holdfast dev` runs them, `holdfast enqueue greet '{{"name": "world"}}'` enqueues the job, `pytest` runs the test, and
`holdfast run guide Oslo --wait` asks the agent.
"""

from holdfast import Holdfast, JobContext, Retry

hf = Holdfast()  # HOLDFAST_URL, or else a SQLite file in .holdfast/


@hf.job(retry=Retry(attempts=5), timeout="1m")
async def greet(ctx: JobContext, name: str) -> str:
    """A job: it may run more than once, so what must happen once goes into a step."""
    greeting = await ctx.step("greet", make_greeting, name)  # stored; after a crash it is not done again
    print(greeting)
    return greeting


async def make_greeting(name: str) -> str:
    return f"hello, {{name}}"


@hf.schedule("every 1m")  # or cron: @hf.schedule("0 3 * * *", timezone="Europe/Athens")
async def tick() -> None:
    """The clock enqueues this one, as long as a worker runs."""
    print("another minute has passed")


@hf.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {{city}}"


# scripted: needs no key. It calls the first tool and answers with its result. A real model: model="claude-sonnet-5-5".
guide = hf.agent("guide", model="scripted:", instructions="Help travellers.", tools=[weather])


if __name__ == "__main__":
    job = greet.enqueue_sync("world")  # committed when this returns, whether or not a worker runs
    print(f"enqueued {{job.id}}")
    hf.sync.close()
'''

TEST = '''"""Run with `pytest`: real jobs on a fresh database, without a worker, a key or the network."""

from {name} import greet, guide, hf


def test_greet_and_guide(holdfast):
    lab = holdfast.use_sync(hf)  # hf is on a fresh database until this test ends
    job = greet.enqueue_sync("world")
    run = guide.enqueue_sync("Oslo")
    lab.drain()  # until nothing is left to do
    assert job.result_sync() == "hello, world"
    assert run.result_sync().text == "sunny in Oslo"
'''

TABLE = """[tool.holdfast]
app = "{name}:hf" # what every command of holdfast works on
"""

_TAKEN = {"holdfast", "pytest", *sys.stdlib_module_names}


@click.command()
@click.argument("name", default="jobs")
def command(name: str) -> None:
    """Write NAME.py (default: jobs.py) with a job, a schedule and an agent, a test for it, and a table in
    pyproject.toml that names its app; say how to run it.

    Files that are there stay as they are, so you can repeat the command.
    """
    name = name.removesuffix(".py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is not a name that Python can import; write it like my_jobs.")
    if name in _TAKEN:
        raise UsageError(f"{name}.py would hide the module {name} that Python has already; give another name.")
    program, test = PROGRAM.format(name=name), TEST.format(name=name)
    file = Path(f"{name}.py")
    if file.exists() and "Holdfast(" not in file.read_text("utf-8", errors="replace"):
        raise UsageError(f"{file} is another program, and was not changed; give another name: `holdfast init NAME`.")
    _write(file, program, "a job, a schedule and an agent")
    _write(Path(f"test_{name}.py"), test, "a test that needs no worker")
    known = _name_app(Path("pyproject.toml"), name)
    app = "" if known else f" --app {name}:hf"
    click.echo("Next, in two terminals:")
    click.echo(f"  holdfast dev{app}")
    click.echo(f"""  holdfast enqueue greet '{{"name": "world"}}' --wait{app}""")
    click.echo(f"  holdfast run guide Oslo --wait{app}")


def _write(file: Path, text: str, what: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(text)
    except FileExistsError:
        click.echo(f"{file} is there already, and was not changed")
    else:
        click.echo(f"wrote {file}: {what}")


def _name_app(file: Path, name: str) -> bool:
    """Let pyproject.toml name the app. False when it names another, or cannot be added to."""
    before = file.read_text("utf-8") if file.exists() else ""
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    after = before + gap + TABLE.format(name=name)
    try:
        table = tomllib.loads(before).get("tool", {}).get("holdfast")
        if table is None:
            tomllib.loads(after)
    except (ValueError, AttributeError) as problem:
        click.echo(f"{file} was not changed, because no table can be added to it: {problem}")
        return False
    if table is not None:
        click.echo(f"{file} has a table [tool.holdfast] already, and was not changed")
        return isinstance(table, dict) and table.get("app") == f"{name}:hf"
    file.write_text(after, "utf-8")
    click.echo(f"wrote {file}: its table [tool.holdfast] names the app {name}:hf")
    return True
