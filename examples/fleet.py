"""Workers that differ: a tool that needs a GPU runs on a worker that has one, everything else on any worker.

`python fleet.py` starts two workers of its own. On real machines:

    holdfast worker fleet:hf
    holdfast worker fleet:hf --capabilities tag:gpu=yes
"""

import asyncio
import os
import subprocess
import sys

from holdfast import Holdfast
from holdfast.errors import NoWorker
from holdfast.models import Script, call, calls, say

hf = Holdfast(embedded=False)
hf.script(
    "artist",
    Script(
        calls(call("sketch", what="a boat"), call("paint", what="a boat")),
        say("Sketched and painted."),
    ),
)


@hf.tool
def sketch(what: str) -> str:
    """Sketch something; any worker can."""
    return f"a sketch of {what}"


@hf.tool(requires=["tag:gpu=yes"])
def paint(what: str) -> str:
    """Paint something; this needs a GPU."""
    return f"a painting of {what}, by worker {os.environ.get('WORKER', 'unknown')}"


artist = hf.agent("artist", model="scripted:artist", tools=[sketch, paint])


def start(name: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast", "worker", "fleet:hf", "--name", name, "--log-level", "warning"]
    return subprocess.Popen([*command, *options], env={**os.environ, "WORKER": name})


async def main() -> None:
    try:
        await artist.enqueue("A boat, please.", require_worker=True)
    except NoWorker as refused:
        print(refused)
    run = await artist.enqueue("A boat, please.")  # without require_worker it waits for a worker
    crew = [start("plain"), start("gpu", "--capabilities", "tag:gpu=yes")]
    try:
        print(await run.text(timeout="60s"))
        for made in await run.calls():
            print(made.output)
    finally:
        for worker in crew:
            worker.terminate()
            await asyncio.to_thread(worker.wait)
        await hf.close()


if __name__ == "__main__":
    asyncio.run(main())
