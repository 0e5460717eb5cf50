"""Bad input and bad days: one clear line on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.cli import notes_of
from holdfast.errors import UsageError, how_to_install
from holdfast.kernel.drivers import describe_url
from tests.support.commands import Said, cold_holdfast, environment, holdfast, program, python
from tests.support.processes import free_port


def ls(url: str) -> Said:
    return holdfast("jobs", "ls", "--url", url)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://localhost/x", "mysql:// is not a database that Holdfast supports; write sqlite:///path"),
        ("app:secret@db.example/shop", "'…@db.example/shop' is not a database URL; write sqlite:///path"),
        ("store.db", "'store.db' is not a database URL; write sqlite:///path"),
        ("sqlite://", "names no file: sqlite:///relative.db"),
        ("sqlite:///", "names no file: sqlite:///relative.db"),
        ("postgresql://localhost:abc/x", "the postgresql:// URL cannot be read: "),
        ("postgresql://app:secret@[::1/x", "the postgresql:// URL cannot be read: "),
    ],
)
def test_a_url_that_cannot_be_used(url: str, reason: str) -> None:
    line = ls(url).refused(2)
    assert reason in line
    assert "secret" not in line


def test_a_server_that_cannot_be_reached() -> None:
    port = free_port()
    line = ls(f"postgresql://app:secret@127.0.0.1:{port}/shop").refused(4)
    assert line.startswith(f"PostgreSQL at 127.0.0.1:{port}/shop cannot be reached")
    assert "secret" not in line
    assert holdfast("migrate", "--url", f"postgresql://127.0.0.1:{port}/shop").refused(4)
    assert "cannot be reached" in ls("postgresql://nowhere.invalid/shop").refused(4)


def test_a_database_that_is_not_there(postgres_url: str) -> None:
    line = ls(f"{postgres_url}_not").refused(2)
    assert "does not exist" in line
    assert "Check user, password and database in the URL." in line


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [("jobs", "ls"), ("migrate",)])
def test_a_file_of_another_program(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "shop.db"
    with contextlib.closing(apsw.Connection(str(file))) as shop:
        shop.execute("create table job (title text)")
    line = holdfast(*words, "--url", f"sqlite:///{file}").refused(3)
    assert line.endswith("shop.db has tables of another program (job): give Holdfast a separate file.")


@pytest.fixture
def bare_postgres(bare_url: str, dialect: str) -> str:
    return bare_url


@pytest.mark.sample(1)
@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
@pytest.mark.parametrize("words", [("jobs", "ls"), ("workers", "ls"), ("epoch", "bump")])
def test_tables_that_are_not_there(bare_postgres: str, words: tuple[str, ...]) -> None:
    line = holdfast(*words, "--url", bare_postgres).refused(3)
    assert line.startswith(f"PostgreSQL at {describe_url(bare_postgres).removeprefix('postgresql ')} has no tables, ")
    assert "Run `holdfast migrate`, with the --app or --url that names it" in line


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
def test_tables_that_are_too_old(bare_postgres: str) -> None:
    assert holdfast("migrate", "--url", bare_postgres, "--to", "0").code == 0
    line = ls(bare_postgres).refused(3)
    assert " has schema 0, this code needs" in line
    assert "Run `holdfast migrate`" in line


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
def test_tables_from_before_the_first_release(bare_postgres: str) -> None:
    assert holdfast("migrate", "--url", bare_postgres).code == 0
    with psycopg.connect(bare_postgres, autocommit=True) as server:
        server.execute("alter table holdfast.schema drop column base")
    for words in (("jobs", "ls"), ("migrate",), ("migrate", "--check"), ("migrate", "--drop", "--yes")):
        line = holdfast(*words, "--url", bare_postgres).refused(3)
        assert " has tables of a development version from before release 0.1.0, and nothing migrates them." in line
        assert "`drop schema holdfast cascade`" in line


@pytest.mark.long
def test_a_missing_extra(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "sys.argv = ['holdfast', 'jobs', 'ls', '--url', 'postgresql://localhost/x']\n"
        "from holdfast.cli import main\n"
        "main()"
    )
    line = python("-c", program, cwd=tmp_path).refused(2)
    assert line == f"a postgresql:// database needs an extra: {how_to_install('postgres')}."


@pytest.mark.long
def test_the_demo_refuses_to_show_pages_before_it_starts_anything(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['fastapi'] = None\n")
    said = cold_holdfast("demo", "--web", cwd=tmp_path, env=environment(PYTHONPATH=str(tmp_path)))
    assert said.refused(2) == f"`holdfast demo --web` needs an extra: {how_to_install('http')}."
    assert said.out == "", "what it does comes first otherwise"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    line = holdfast("migrate", "--url", f"sqlite:///{tmp_path}/file/deeper/store.db").refused(4)
    assert f"{tmp_path}/file/deeper/store.db" in line


def unwritable(folder: Path) -> Path:
    """A folder in which nobody may make a file, root included."""
    if os.geteuid() == 0:
        return Path("/proc/self")
    folder.chmod(0o500)
    return folder


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = unwritable(tmp_path)
    line = holdfast("migrate", "--url", f"sqlite:///{folder}/store.db").refused(4)
    assert f"{folder}/store.db cannot be used" in line
    assert "writable" in line


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear database,\n" * 100)
    line = ls(f"sqlite:///{tmp_path}/letter.txt").refused(4)
    assert "letter.txt is damaged or not a SQLite database" in line
    assert holdfast("migrate", "--url", f"sqlite:///{tmp_path}/letter.txt").refused(4) == line


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    assert f"{tmp_path} cannot be used" in ls(f"sqlite:///{tmp_path}").refused(4)


def test_an_error_nobody_foresaw_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import sys; from holdfast.cli import main, tables\n"
        "def broken(*_): raise ZeroDivisionError('a fault')\n"
        "tables.ask = broken; sys.argv = ['holdfast', *sys.argv[1:]]; main()"
    )
    line = program("broken.py", "jobs", "ls", cwd=tmp_path).refused(70)
    assert line == "ZeroDivisionError: a fault. Run `holdfast --debug …` to see where."
    said = program("broken.py", "--debug", "jobs", "ls", cwd=tmp_path)
    assert said.code == 1
    assert "Traceback" in said.err


def test_debug_shows_where_a_refusal_comes_from(tmp_path: Path) -> None:
    said = holdfast("--debug", "jobs", "ls", "--url", "mysql://x", cwd=tmp_path)
    assert "Traceback" in said.err
    assert "BadUrl" in said.err


def test_the_default_database_is_a_file_in_this_folder(tmp_path: Path) -> None:
    assert holdfast("migrate", cwd=tmp_path, env=environment()).code == 0
    assert holdfast("jobs", "ls", cwd=tmp_path, env=environment()).lines == ["no jobs"]
    assert (tmp_path / ".holdfast" / "holdfast.db").is_file()


def test_an_error_that_was_raised_from_itself_has_an_end() -> None:
    problem = UsageError("no")
    problem.add_note("here")
    problem.__cause__ = problem
    assert notes_of(problem) == ["here"]


def test_what_a_program_raises_shows_no_secret_and_commands_no_terminal(tmp_path: Path) -> None:
    key = "sk-ant-api03-0123456789abcdef"
    (tmp_path / "shop.py").write_text(f"raise ValueError('{key} \\x1b[31m \\u202e')\n")
    for words in (("jobs", "ls"), ("jobs", "ls", "--json")):
        said = holdfast(*words, "--app", "shop:hf", cwd=tmp_path, env=environment())
        assert said.code == 2
        assert "shop.py" in said.err, "the line is shown"
        for shown in (said.out, said.err):
            assert key not in shown
            assert "\x1b" not in shown
            assert "\u202e" not in shown
