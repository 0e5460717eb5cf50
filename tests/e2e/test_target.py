"""Every command finds the app and its database, says which it is, and makes none by looking."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import COMMANDS, group
from holdfast.cli.target import database_label, repeated, url_option
from holdfast.kernel.drivers import describe_url
from holdfast.settings import Settings
from tests.support.commands import PATIENCE, environment, holdfast, start

PROGRAM = """
import os
from holdfast import Holdfast, Settings

print("imported")
hf = Holdfast(os.environ.get("SHOP_URL", "sqlite:///shop.db"))


@hf.job(name="greet")
async def greet(name: str) -> None: ...
"""
# Commands that write, run until stopped, or ask no database. All others only look, and are found by themselves.
APART = {"init", "migrate", "bench", "demo", "provider", "completion", "settings", "worker", "dev", "enqueue"}
APART |= {"agw", "deploy", "pool", "resp", "serve", "sql"}  # they serve, or look into no store
OF_FILES = {"machine": ("check", "run"), "plan": ("submit",), "action": ("submit",)}
OF_FILES["triggers"] = ("tick", "install", "remove")  # they begin with a file of yours
OF_FILES["tokens"] = ("create",)  # it makes a new database: nobody can log in without a token


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a program and the database that it names."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


def database_of(folder: Path, *words: str, **variables: str) -> str:
    """What `migrate` says it would work on."""
    return str(holdfast("migrate", "--json", *words, cwd=folder, env=environment(**variables)).json["database"])


def test_the_first_that_names_an_app_or_a_database_decides(shop: Path) -> None:
    """The order of the reference page: each takes precedence over those below it."""
    assert database_of(shop) == "sqlite .holdfast/holdfast.db"
    assert database_of(shop, HOLDFAST_URL="sqlite:///own.db") == "sqlite own.db"
    (shop / "pyproject.toml").write_text('[tool.holdfast]\napp = "shop:hf"\n')
    assert database_of(shop, HOLDFAST_URL="sqlite:///own.db") == "sqlite shop.db"
    (shop / "other.py").write_text(PROGRAM.replace("shop.db", "other.db"))
    assert database_of(shop, HOLDFAST_APP="other:hf") == "sqlite other.db"
    (shop / "third.py").write_text(PROGRAM.replace("shop.db", "third.db"))
    assert database_of(shop, "--app", "third", HOLDFAST_APP="other:hf") == "sqlite third.db"
    assert database_of(shop, "--url", "sqlite:///url.db", "--app", "third") == "sqlite url.db"
    said = holdfast("migrate", "--url", "sqlite:///url.db", cwd=shop, env=environment(HOLDFAST_APP="no_such:hf"))
    assert said.lines == ["database: sqlite url.db", "nothing to do"]
    assert "imported" not in said.err, "a URL alone imports no code"


def test_what_a_program_prints_is_no_part_of_an_answer(shop: Path) -> None:
    said = holdfast("migrate", "--app", "shop:hf", cwd=shop)
    assert said.lines[0] == "database: sqlite shop.db"
    assert said.err == "imported\n"
    assert holdfast("jobs", "ls", "--app", "shop:hf", "--json", cwd=shop).json == []
    enqueued = holdfast("enqueue", "greet", '["Ann"]', "--app", "shop:hf", "--json", cwd=shop)
    assert (enqueued.json["kind"], enqueued.err) == ("greet", "imported\n")
    worker = holdfast("worker", "shop:hf", "--until-empty", cwd=shop)
    assert worker.out == "imported\n", "a worker has no answer of its own: what the program prints stays where it is"


@pytest.mark.parametrize("words", [("jobs", "ls"), ("enqueue", "greet"), ("worker",)], ids=" ".join)
def test_a_program_that_cannot_be_imported_shows_the_line_that_raised(shop: Path, words: tuple[str, ...]) -> None:
    (shop / "pyproject.toml").write_text('[tool.holdfast]\napp = "broken:hf"\n')
    (shop / "broken.py").write_text('import os\n\nos.environ["missing"]\n')
    said = holdfast(*words, cwd=shop)
    assert said.code == 2
    assert "names the app 'broken:hf': broken cannot be imported: KeyError: 'missing'." in said.err.splitlines()[0]
    assert f'File "{shop / "broken.py"}", line 3' in said.err
    assert "importlib" not in said.err, "how Python imports it is no help"
    (shop / "broken.py").write_text("def (\n")
    assert f'File "{shop / "broken.py"}", line 1' in holdfast(*words, cwd=shop).err


def test_pyproject_is_looked_for_up_to_the_repository_and_no_further(shop: Path) -> None:
    (shop / "pyproject.toml").write_text('[tool.holdfast]\napp = "shop:hf"\n')
    deep = shop / "web" / "views"
    deep.mkdir(parents=True)
    assert "no database at .holdfast/holdfast.db" in holdfast("jobs", "ls", cwd=deep).refused(3)
    (shop / ".git").mkdir()
    assert database_of(deep) == f"sqlite {shop / 'shop.db'}", "a relative file is beside the pyproject.toml"
    assert holdfast("jobs", "ls", "--json", cwd=deep).json == []
    (shop / "web" / ".git").write_text("gitdir: elsewhere")
    assert "no database at .holdfast/holdfast.db" in holdfast("jobs", "ls", cwd=deep).refused(3)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('[tool.holdfast]\napp = "shp:hf"\n', "pyproject.toml names the app 'shp:hf': cannot find module 'shp'"),
        ("[tool.holdfast]\napp = 7\n", 'app under [tool.holdfast] must be text such as "app:hf"; got 7.'),
        ("[tool.holdfast\n", "pyproject.toml cannot be read"),
    ],
)
def test_a_pyproject_that_is_wrong_is_named(shop: Path, written: str, said: str) -> None:
    (shop / "pyproject.toml").write_text(written)
    line = holdfast("jobs", "ls", cwd=shop).refused(2)
    assert said in line
    assert holdfast("migrate", "--url", "sqlite:///own.db", cwd=shop).code == 0


def test_a_worker_finds_its_app(shop: Path) -> None:
    said = holdfast("worker", cwd=shop)
    assert said.code == 2
    assert "name its app as MODULE:APP, with --app, in HOLDFAST_APP" in said.err
    for words, variables in (((), {"HOLDFAST_APP": "shop:hf"}), (("--app", "shop:hf"), {})):
        assert holdfast("worker", *words, "--until-empty", cwd=shop, env=environment(**variables)).code == 0
    said = holdfast(
        "worker",
        "--url",
        "sqlite:///own.db",
        "--until-empty",
        "--queues",
        "defualt",
        cwd=shop,
        env=environment(HOLDFAST_APP="shop:hf"),
    )
    assert said.code == 0
    assert "--queues defualt: this app declares nothing of that name. Did you mean 'default'?" in said.err
    assert (shop / "own.db").exists()


def test_a_worker_under_dev_logs_what_is_misspelt(shop: Path) -> None:
    """In its own format, from the first line on."""
    words = ("worker", "shop:hf", "--leash", "--until-empty", "--queues", "defualt", "--log-format", "json")
    env = environment(HOLDFAST_LUNCH="1")
    parent, leash = socket.socketpair()
    with parent, leash, (shop / "log").open("w+") as log:
        process = start(*("-m", "holdfast", *words), cwd=shop, env=env, stdin=leash.fileno(), stderr=log)
        assert process.wait(PATIENCE) == 0
        log.seek(0)
        lunch, queue, *_ = [json.loads(line)["message"] for line in log]
    assert lunch.startswith("HOLDFAST_LUNCH is not a setting of Holdfast")
    assert queue == "--queues defualt: this app declares nothing of that name. Did you mean 'default'?"


def test_answers_name_the_database_and_never_its_password(bare_url: str, dialect: str, shop: Path) -> None:
    secret = bare_url.replace("://postgres@", "://postgres:hunter2@")
    assert dialect == "sqlite" or secret != bare_url
    env = environment(SHOP_URL=secret, HOLDFAST_APP="shop:hf")
    label = describe_url(bare_url)
    before = holdfast("migrate", "--check", cwd=shop, env=env)
    assert before.out.startswith(f"{label} has schema 0")
    assert holdfast("migrate", cwd=shop, env=env).lines[0] == f"database: {label}"
    doctor = holdfast("doctor", cwd=shop, env=env)
    assert doctor.out.startswith(f"database: {label}\n")
    settings = holdfast("settings", cwd=shop, env=env)
    assert "hunter2" not in before.out + before.err + doctor.out + doctor.err + settings.out
    assert [path.name for path in shop.iterdir() if path.name.startswith(".")] == [], "not the default file"


def test_a_schema_of_its_own_is_part_of_the_name() -> None:
    url = "postgresql://ann:hunter2@db/shop"
    assert database_label(Settings(url=url)) == "postgresql db/shop"
    assert database_label(Settings(url=url, schema="eu")) == "postgresql db/shop (schema eu)"


def test_migrate_says_when_nobody_has_named_a_database(shop: Path) -> None:
    first = holdfast("migrate", cwd=shop).lines[0]
    assert first == (
        "database: sqlite .holdfast/holdfast.db (the default, because nothing names an app or another database)"
    )


def lookers() -> Iterator[tuple[str, ...]]:
    """Every command that only looks, with a word for each argument that it must have."""
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        verbs = command.commands if isinstance(command, click.Group) else {"": command}
        for verb, each in verbs.items() if name not in APART else ():
            if verb in OF_FILES.get(name, ()):
                continue
            needed = [parameter for parameter in each.params if parameter.required]
            options = [word for p in needed if isinstance(p, click.Option) for word in (p.opts[0], "1d")]
            words = ["x" for p in needed if isinstance(p, click.Argument)]
            every = ["--all"] if verb in ("retry", "cancel") and name == "jobs" else []
            confirmed = ["--yes"] if any(p.name == "yes" for p in each.params) else []
            yield (name, *([verb] if verb else []), *words, *options, *every, *confirmed)


@pytest.mark.long
def test_looking_makes_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    wrong: list[str] = []
    for words in lookers():
        said = holdfast(*words, cwd=tmp_path)
        if said.code != 3 or "or run `holdfast migrate`. If your program uses another database" not in said.err:
            wrong.append(f"{' '.join(words)}: {said}")
        if left := [path.name for path in tmp_path.iterdir()]:
            wrong.append(f"{' '.join(words)} made {left}")
    assert not wrong, "\n".join(wrong)


def test_to_check_or_dump_a_migration_makes_nothing(tmp_path: Path) -> None:
    assert holdfast("migrate", "--check", cwd=tmp_path).code == 1
    assert holdfast("migrate", "--dump-sql", cwd=tmp_path).code == 0
    assert holdfast("migrate", "--drop", "--yes", cwd=tmp_path).lines[1:] == [
        "there is no such file, so there is nothing to remove"
    ]
    assert holdfast("migrate", "--drop", "--yes", "--json", cwd=tmp_path).json["done"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_misspelt_is_refused(shop: Path) -> None:
    (shop / "pyproject.toml").write_text('[tool.holdfast]\nap = "shop:hf"\n')
    line = holdfast("settings", cwd=shop).refused(2)
    assert line.endswith("pyproject.toml: there is no key 'ap' under [tool.holdfast]. Did you mean 'app'?")


def test_a_hint_repeats_what_names_the_database_but_no_password() -> None:
    @click.command()
    @url_option
    def command(url: str | None) -> None:
        click.echo(repeated(url))

    words = ["--app", "shop:hf", "--url", "postgresql://ann:secret@db/shop?a=b"]
    assert CliRunner().invoke(command, words).output == " --app shop:hf --url 'postgresql://ann:***@db/shop?a=b'\n"
    assert CliRunner().invoke(command, []).output == "\n"


def test_variables_that_are_misspelt_are_named_once(tmp_path: Path) -> None:
    of_others = {"HOLDFAST_WEB_SERVICE_HOST": "10.0.0.1", "HOLDFAST_PORT_80_TCP": "tcp://", "HOLDFAST_FUZZ_SEEDS": "3"}
    env = environment(HOLDFAST_CONCURENCY="3", HOLDFAST_LUNCH="1", HOLDFAST_APP="", HOLDFAST_POOLER="no", **of_others)
    said = holdfast("settings", "--json", cwd=tmp_path, env=env)
    assert said.err.splitlines() == [
        "HOLDFAST_CONCURENCY is not a setting of Holdfast and changes nothing: did you mean HOLDFAST_CONCURRENCY?",
        "HOLDFAST_LUNCH is not a setting of Holdfast and changes nothing: `holdfast settings` lists them.",
    ]
    assert said.json
