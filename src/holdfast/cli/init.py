"""`holdfast init`: a small program to begin with, and what to type next."""

from __future__ import annotations

import keyword
from pathlib import Path

import click

from holdfast.errors import UsageError

PROGRAM = '''"""Jobs that survive crashes: `holdfast dev {name}:hf` runs them, `python {name}.py` enqueues one."""

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


if __name__ == "__main__":
    job = greet.enqueue_sync("world")  # committed when this returns, whether or not a worker runs
    print(f"enqueued {{job.id}}")
    hf.close_sync()
'''


@click.command()
@click.argument("name", default="jobs")
def command(name: str) -> None:
    """Write NAME.py (default: jobs.py), a program with one job and one schedule, and say how to run it."""
    name = name.removesuffix(".py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is not a name that Python could import; write it like my_jobs.")
    file = Path(f"{name}.py")
    try:
        with file.open("x") as program:
            program.write(PROGRAM.format(name=name))
    except FileExistsError:
        raise UsageError(
            f"{file} is there already and stays as it is; give another name: `holdfast init NAME`."
        ) from None
    click.echo(f"wrote {file}: a job, a schedule, and what to do with them. Next, in two terminals:")
    click.echo(f"  holdfast dev {name}:hf")
    click.echo(f"  python {file}")
