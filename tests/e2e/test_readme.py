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


def test_the_programs_of_the_readme_are_whole_as_shown() -> None:
    """Each is a file; nothing that a reader does not see is needed to run it."""
    assert "<!-- unseen" not in README
    programs = [block.text for block in blocks(README) if block.language == "python"]
    assert [text.splitlines()[0] for text in programs] == ["# quick.py", "# later.py", "# hello.py"]


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

    (later,) = [block.text for block in blocks(README) if block.text.startswith("# later.py\n")]
    (tmp_path / "later.py").write_text(later)
    (worker,) = {line.removesuffix(" &") for line in commands(README) if line.startswith("holdfast worker quick:hf ")}
    with start("-m", *shlex.split(worker), cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            said = program("later.py", cwd=tmp_path, env=env)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE)
    assert (said.lines[-1], code) == ("sunny in Lima", 0)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".db" or path.name == ".holdfast"]
