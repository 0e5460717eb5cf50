"""Build the wheel and the sdist, and use both outside of the repository: `make try-wheel`.

For each Python that is found (python3.11 and later, on the path or among pyenv's versions; `--python` names others) a
fresh environment gets the wheel, and the first one the sdist too. There a small program makes a job and an agent and
runs them, and the command answers. Nothing of this repository is on its path. The versions that pass are those that
the classifiers may list. With `--offline` nothing is downloaded: the dependencies are those of this environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = '''\
from holdfast import Holdfast, JobContext
from holdfast.http import sse

hf = Holdfast("sqlite:///tried.db")


@hf.job
async def greet(ctx: JobContext, name: str) -> str:
    return await ctx.step("greet", lambda: f"hello, {name}")


@hf.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


guide = hf.agent("guide", model="scripted:", tools=[weather])

if __name__ == "__main__":
    print(greet.run_sync("Oslo"))
    print(guide.run_sync("Oslo").text)
    print(type(sse(hf.runs["a run"], {"type": "http"})).__name__)  # needs no extra
'''
EXPECTED = "hello, Oslo\nsunny in Oslo\nEventResponse\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="an interpreter to try, instead of all that are found")
    parser.add_argument("--offline", action="store_true", help="take the dependencies from this environment")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        wheel, sdist = build(Path(folder) / "built")
        print(f"{wheel.name}, {sdist.name}", flush=True)
        for number, python in enumerate(asked.python or found()):
            for package in (wheel, sdist) if number == 0 else (wheel,):
                where = Path(folder) / f"{number}{package.suffix}"
                print(f"{package.name} with {python}: {use(package, python, where, asked.offline)}", flush=True)


def found() -> Iterator[str]:
    """One interpreter for each version from 3.11 on."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(11, 20):
        candidates = [*sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}")), shutil.which(f"python3.{minor}")]
        works = [str(each) for each in candidates if each and _version(str(each)) == f"3.{minor}"]
        yield from works[:1]


def _version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, as a user of an index would get them."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def use(package: Path, python: str, folder: Path, offline: bool) -> str:
    """Install it into an environment of its own and run the program; the version that answered."""
    run(python, "-m", "venv", str(folder / "venv"), cwd=folder.parent)
    inside = str(folder / "venv" / "bin" / "python")
    install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if offline:
        install += ["--no-index", "--no-deps", "--no-build-isolation"]
        (packages,) = (folder / "venv").glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))  # behind its own, without our .pth files
    run(*install, str(package), cwd=folder)
    (folder / "tried.py").write_text(PROGRAM)
    said = run(inside, "tried.py", cwd=folder)
    if said != EXPECTED:
        raise SystemExit(f"the program printed {said!r}, not {EXPECTED!r}")
    where = run(inside, "-c", "import holdfast; print(holdfast.__file__)", cwd=folder)
    if not where.startswith(str(folder)):
        raise SystemExit(f"the program used {where}")
    run(str(folder / "venv" / "bin" / "holdfast"), "worker", "tried:hf", "--until-empty", cwd=folder)
    return run(str(folder / "venv" / "bin" / "holdfast"), "--version", cwd=folder).strip()


def run(*command: str, cwd: Path) -> str:
    # Nothing of the caller's Python or Holdfast reaches the process.
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST_", "VIRTUAL_"))
    }
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}(code {done.returncode})")
    return done.stdout


if __name__ == "__main__":
    main()
