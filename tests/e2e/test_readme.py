"""The README on PostgreSQL: its program with the URL changed, and its commands as they are written."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.kernel.drivers import describe_url
from tests.support.commands import PATIENCE, environment, holdfast, program, start
from tests.support.snippets import blocks, commands

README = (Path(__file__).parents[2] / "README.md").read_text()
SQLITE = '"sqlite:///quick.db"'


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
def test_the_readme_is_followed_literally_on_postgresql(bare_url: str, dialect: str, tmp_path: Path) -> None:
    (text,) = [block.text for block in blocks(README) if block.language == "python" and SQLITE in block.text]
    (tmp_path / "quick.py").write_text(text.replace(SQLITE, repr(bare_url)))
    env = environment()
    (console,) = [block.text for block in blocks(README) if "$ python quick.py" in block.text]
    before = program("quick.py", cwd=tmp_path, env=env)
    assert "has no tables" in before.err
    assert "`holdfast migrate`" in before.err

    (migrate,) = {line for line in commands(README) if line.startswith("holdfast migrate")}
    done = holdfast(*shlex.split(migrate)[1:], cwd=tmp_path, env=env)
    assert done.lines[0] == f"database: {describe_url(bare_url)}"
    assert program("quick.py", cwd=tmp_path, env=env).lines == console.splitlines()[1:]

    (worker,) = {line for line in commands(README) if line.startswith("holdfast worker quick:hf ")}
    with start("-m", *shlex.split(worker), cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            said = holdfast("run", "guide", "Rome", "--wait", "--app", "quick:hf", cwd=tmp_path, env=env)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE)
    assert (said.lines, code) == (["sunny in Rome"], 0)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".db" or path.name == ".holdfast"]
