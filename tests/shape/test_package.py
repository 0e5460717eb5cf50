"""The public face: few names, and an import that does nothing."""

from __future__ import annotations

import json
from pathlib import Path

import holdfast
from holdfast import errors
from tests.support.commands import python

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


def test_every_error_says_whether_to_try_again() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(kinds) > 15
    for kind in kinds:
        assert issubclass(kind, errors.HoldfastError)
        assert kind.retry in ("never", "later", "now")
        assert kind.__doc__
        assert kind.__name__ in (errors.__doc__ or ""), f"{kind.__name__} is missing from the overview"
