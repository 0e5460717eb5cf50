"""The public face: few names, an import that does nothing, and a distribution that is not mistaken for another."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import NAME
from tests.shape.tree import ROOT, SOURCE, listed
from tests.support.commands import environment, python

WITNESS = """
import json, sys

opened = []

def hear(event, args):
    if event in ("open", "socket.connect", "sqlite3.connect", "subprocess.Popen", "os.mkdir", "os.listdir"):
        opened.append([event, str(args[0]) if args else ""])

sys.addaudithook(hear)
import holdfast
import holdfast.cli
loaded = sorted(set(sys.modules) & {
    "apsw", "asyncpg", "pydantic", "anthropic", "fastapi", "jinja2", "opentelemetry", "sqlite3", "yaml"})
click = "click" in sys.modules
print(json.dumps({"opened": opened, "loaded": loaded, "click": click}))
"""
EXTRAS = "|".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
OPTIONAL = {"anthropic", "asyncpg", "fastapi", "h11", "httpx2", "jinja2", "markdown_it", "mcp", "opentelemetry"}
OPTIONAL |= {"prometheus_client", "redis", "starlette", "uvicorn", "uvloop", "websockets", "yaml"}
NAMESAKE = re.compile(r"(?<![\w./-])holdfast(?![\w./-])")
INSTALLS = re.compile(
    r"\b(?:uvx|pipx\s+run|uv\s+tool\s+run"
    r"|(?:pip[\d.]*|pipx|uv|poetry|pdm|rye|conda|mamba|pixi)\b[^\n`]*?(?:\binstall|\badd|\binject|--with|--from))"
    r"\b[\s\"',]+(?P<what>[^\n`;&|]*)"
)
REQUIRES = re.compile(
    rf"(?<![\w./-])holdfast(?:\[(?:{EXTRAS})\b[^\]]*\]|\s*(?:[=~<>!]=|[<>])\s*\d)"
    r"|dependencies\s*=\s*\[[^\]]*[\"']holdfast[\"']"
    r"|\b(?:version|distribution|metadata)\([\"']holdfast[\"']\)"
)


def test_there_are_few_public_names() -> None:
    assert len(holdfast.__all__) <= 25
    assert holdfast.__all__ == sorted(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name).__doc__, f"{name} says nothing about itself"


def test_the_app_has_few_public_names() -> None:
    """What a program calls, and nothing that parts of the app call on each other."""
    names = {name for name in dir(holdfast.Holdfast()) if not name.startswith("_")}
    declaring = {"agent", "job", "machine", "mcp", "pool", "queue", "schedule", "script", "tool", "upload"}
    declaring |= {"provider", "webhook"}
    using = {"answer", "approve", "broker", "deny", "enqueue", "events", "session", "signal", "sync", "tenant", "why"}
    listing = {"agents", "batches", "budgets", "inquiries", "jobs", "lanes", "pools", "queues", "runs", "schedules"}
    listing |= {"sessions"}
    working = {"access", "close", "ensure_worker", "lifespan", "migrate", "resp", "settings", "web", "work"}
    working |= {"work_sync", "workers"}
    assert names == declaring | using | listing | working
    assert len(names) <= 45  # decision 30


def test_importing_reads_no_file_but_code(tmp_path: Path) -> None:
    seen = json.loads(python("-B", "-c", WITNESS, cwd=tmp_path).out)
    others = [(event, path) for event, path in seen["opened"] if event != "open"]
    read = [path for event, path in seen["opened"] if event == "open" and not path.endswith((".py", ".pyc"))]
    assert [path for path in read if path.endswith(".sql")] == []
    assert [path for path in read if "holdfast" in path and "__pycache__" not in path] == []
    assert [(event, path) for event, path in others if "holdfast" in path and event != "os.listdir"] == []
    assert list(tmp_path.iterdir()) == []


def test_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    seen = json.loads(python("-c", WITNESS, cwd=tmp_path).out)
    assert seen["loaded"] == []
    alone = WITNESS.replace("import holdfast.cli\n", "")
    assert json.loads(python("-c", alone, cwd=tmp_path).out)["click"] is False


PLAIN_JOB = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())

from holdfast import Holdfast

hf = Holdfast("sqlite:///plain.db")

@hf.job
def double(number: int) -> int:
    return 2 * number

print(double.run_sync(21))
hf.sync.close()
"""


def test_a_plain_job_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    """The web, the gateway, machines, pools, brokers, facades and the lab are imported when they are asked for."""
    loads = PLAIN_JOB.partition("print(")[0] + "print(*[name for name in sys.modules if name.startswith('holdfast')])"
    found = python("-c", loads, cwd=tmp_path).out.split()
    assert len(found) <= 200
    later = {"access", "agw", "brokers", "cli", "facades", "http", "pools", "telemetry", "testing"}
    later |= {"agents.capsules.replay", "agents.mcp", "machines.engine", "resp.server"}
    early = [name for name in found if any(f"{name}.".startswith(f"holdfast.{each}.") for each in later)]
    assert not early, listed(early)


def test_a_plain_job_needs_no_extra(tmp_path: Path) -> None:
    assert python("-c", PLAIN_JOB, cwd=tmp_path).lines == ["42"]


def test_every_error_says_whether_to_try_again() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(kinds) > 15
    for kind in kinds:
        assert issubclass(kind, errors.HoldfastError)
        assert kind.retry in ("never", "later", "now")
        assert kind.__doc__
        assert kind.__name__ in (errors.__doc__ or ""), f"{kind.__name__} is missing from the overview"


def test_nothing_installs_the_namesake() -> None:
    """`holdfast` on the package index is another project; ours is `holdfast-agents`."""
    found = [
        f"{path.relative_to(ROOT)}: {each}" for path in texts() for each in namesakes(path.read_text(errors="replace"))
    ]
    assert not found, f"write {NAME}, or the path of a checkout:{listed(found)}"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("pip install NAME", True),
        ("`pip install\nNAME`", True),
        ("python3 -m pip install -U pytest 'NAME==0.1'", True),
        ("uv add NAME", True),
        ("uv pip install --quiet NAME", True),
        ("uvx NAME demo", True),
        ("uv run --with NAME python", True),
        ('["pip", "install", "NAME"]', True),
        ("Install `NAME[postgres]`.", True),
        ("NAME[http,postgres]>=1", True),
        ("NAME >= 0.1", True),
        ('dependencies = ["click", "NAME"]', True),
        ('importlib.metadata.version("NAME")', True),
        ("pip install NAME-agents", False),
        ("pip install 'NAME-agents[postgres]'", False),
        ("pip install 'path/to/NAME[postgres]'\nNAME worker app:hf", False),
        ("pip install path/to/NAME && NAME init", False),
        ("pip uninstall NAME", False),
        ("uv run NAME worker", False),
        ("assert NAME == 'rope'", False),
    ],
)
def test_what_would_install_the_namesake_is_found(text: str, is_found: bool) -> None:
    assert bool([*namesakes(text.replace("NAME", "holdfast"))]) is is_found


def texts() -> Iterator[Path]:
    """Every file of the project but pictures and fonts."""
    made = {"__pycache__", "node_modules", "build", "dist"}
    for place in [ROOT / ".ci", *(each for each in sorted(ROOT.iterdir()) if not each.name.startswith("."))]:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and path.suffix not in (".png", ".woff2") and not made & {*path.parts}:
                yield path


def namesakes(text: str) -> Iterator[str]:
    for found in INSTALLS.finditer(text):
        if NAMESAKE.search(found["what"]):
            yield found[0]
    for found in REQUIRES.finditer(text):
        yield found[0]


def test_a_namesake_is_named_where_it_is_installed_last_and_where_it_is_not(tmp_path: Path) -> None:
    place = tmp_path / "site-packages"
    package = place / "holdfast"
    package.mkdir(parents=True)
    for each in SOURCE.iterdir():
        (package / each.name).symlink_to(each)
    env = environment(PYTHONPATH=str(place))
    alone = python("-c", "import holdfast", cwd=tmp_path, env=env)
    assert (alone.code, alone.err) == (0, "")

    (place / "holdfast-0.5.1.dist-info").mkdir()
    words = f"the distribution 'holdfast' (holdfast-0.5.1.dist-info in {place}), is installed beside {NAME}. "
    warned = python("-c", "import holdfast\nprint(holdfast.Settings.__name__)", cwd=tmp_path, env=env)
    assert (warned.code, warned.out) == (0, "Settings\n")
    assert warned.err.startswith("<string>:1: RuntimeWarning: another project, "), "where it is imported"
    assert words in warned.err
    assert "Run `pip uninstall holdfast`, then install holdfast-agents again" in warned.err

    for theirs in ("__init__.py", "__main__.py", "version.py"):  # three of the files that theirs has
        (package / theirs).unlink(missing_ok=True)
        (package / theirs).write_text('__all__ = ["Contract"]\n')
    assert words in python("-c", "from holdfast.cli import main; main()", cwd=tmp_path, env=env).refused(2)


def test_a_namesake_is_named_beside_a_checkout(tmp_path: Path) -> None:
    """The package of a checkout is in a folder of its own."""
    (tmp_path / "site-packages" / "holdfast.egg-info").mkdir(parents=True)
    said = python("-c", "import holdfast", env=environment(PYTHONPATH=str(tmp_path / "site-packages")))
    assert "(holdfast.egg-info in " in said.err


def test_the_light_lock_is_a_part_of_the_lock() -> None:
    """`make demo` installs it, and `make test` then adds the rest."""
    all, light = (locked(name) for name in ("requirements.lock", "requirements-light.lock"))
    assert {name: all.get(name) for name in light} == light, "run `make lock`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == NAME
    assert {re.split(r"[<>=]", each)[0] for each in project["dependencies"]} <= {*light}


def locked(name: str) -> dict[str, list[str]]:
    """By package: its version and hashes."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    return {each.partition("==")[0]: each.split() for each in re.split(r"\n(?=\w)", text)}
