"""Which app and which database a command works on. `find` alone decides, in the order of `ORDER`.

Commands that only look into the store take the app's settings and none of its code. They make no database: only what
writes does that.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from holdfast.app import Holdfast, core_of, machines_of
from holdfast.errors import BadSetting, HoldfastError, StoreRefused, UsageError
from holdfast.kernel.drivers import describe_url, dialect_of, sqlite_path
from holdfast.kernel.drivers.addresses import without_password
from holdfast.settings import Settings, given_url
from holdfast.text import message_of, traceback_of
from holdfast.validation import did_you_mean

C = TypeVar("C", bound=Callable[..., Any] | click.Command)

# The first that is there decides. The reference page of commands prints this table.
ORDER = (
    ("`--url URL`", "this database; it replaces the app's own, and alone it imports no code"),
    ("`--app MODULE:APP`", "the app of your program; some commands also take it as their first argument"),
    ("`HOLDFAST_APP`", "the same, in the environment"),
    (
        '`[tool.holdfast]`, `app = "MODULE:APP"`',
        "the same, in the `pyproject.toml` of this folder, or of a folder above it in the same repository",
    ),
    ("`HOLDFAST_URL`", "this database"),
    ("none of these", "the file `.holdfast/holdfast.db` in this folder"),
)

_APP = "holdfast.app"
_KEYS = ("app",)  # of the table [tool.holdfast]
_REPOSITORY = (".git", ".hg")
_IMPORTING = (__file__, importlib.__file__, "<frozen importlib")


def _remember_app(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_APP] = value


app_option = click.option(
    "--app",
    metavar="MODULE:APP",
    expose_value=False,
    callback=_remember_app,
    help="App to use; default: HOLDFAST_APP, else [tool.holdfast] in pyproject.toml.",
)
_url = click.option(
    "--url",
    help="Database URL; replaces the app's own. Default: the app's, HOLDFAST_URL, or a file.",
    callback=lambda _context, _option, url: url or given_url(),
)


def url_option(command: C) -> C:
    """`--url`, which the command is given, and `--app`, which `find` asks click for."""
    return _url(app_option(command))


class Target(NamedTuple):
    """What was named, and where."""

    app: str  # MODULE:APP; empty: no code is imported
    url: str | None  # in place of the app's own; without an app, None is what the environment or the default says
    named_by: str
    folder: Path  # what the app is imported from, and where its file is if its URL does not say

    @property
    def is_default(self) -> bool:
        """Nobody has named anything: it is the file in this folder."""
        return not self.named_by


def find(url: str | None, app: str | None = None, *, code: bool = False) -> Target:
    """The app and the database of a command. `app` is its argument, `code` says that it needs the app's own code."""
    here = Path.cwd()
    if app or (app := app_argument()):
        return Target(app, url, "--app", here)
    if url and not code:
        return Target("", url, "--url", here)
    if app := os.environ.get("HOLDFAST_APP"):
        return Target(app, url, "HOLDFAST_APP", here)
    if (project := _project(here)) is not None:
        file, app = project
        return Target(app, url, str(file), file.parent)
    if url:
        return Target("", url, "--url", here)
    return Target("", None, "HOLDFAST_URL" if os.environ.get("HOLDFAST_URL") else "", here)


def app_argument() -> str | None:
    """What `--app` says."""
    context = click.get_current_context(silent=True)
    app: str | None = context.meta.get(_APP) if context else None
    return app


def repeated(url: str | None) -> str:
    """The `--app` and `--url` of this command, for the commands that it names. A password is not repeated."""
    given = (("--app", app_argument()), ("--url", url and without_password(url)))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


def settings_for(url: str | None) -> Settings:
    """The settings that a command without code of its own works with: those of the app, or of the environment."""
    return settings_of(find(url))


def app_for(url: str | None) -> Holdfast:
    """An app without jobs of its own, for looking into a store that is there."""
    target = find(url)
    app = Holdfast(settings=settings_of(target), embedded=False)
    if not file_is_there(app.settings):
        elsewhere = ". If your program uses another database, name it with --app or --url" if target.is_default else ""
        raise StoreRefused(
            f"there is no database at {sqlite_path(app.settings.url)} yet: a worker or the first enqueue creates it, "
            f"or run `holdfast migrate`{elsewhere}."
        )
    return app


def app_that_creates(url: str | None) -> Holdfast:
    """An app without jobs of its own, for a command that writes: it makes the store if there is none."""
    return Holdfast(settings=settings_of(find(url)), embedded=False)


def file_is_there(settings: Settings) -> bool:
    """False for a file that opening would make."""
    if dialect_of(settings.url) != "sqlite":
        return True
    path = sqlite_path(settings.url)
    return path == ":memory:" or Path(path).exists()


def require_app(url: str | None, target: str | None) -> Target:
    """What names the app of the user's program: the argument of a command, or one of `ORDER`."""
    found = find(url, target, code=True)
    if not found.app:
        raise click.UsageError(
            "this command needs your program: name its app as MODULE:APP, with --app, in HOLDFAST_APP, or as "
            'app = "MODULE:APP" under [tool.holdfast] in pyproject.toml.'
        )
    return found


def app_with_code(target: str | None, url: str | None, *, answers: bool = True) -> Holdfast:
    """The app of the user's program, as its argument or one of `ORDER` names it; `--url` replaces its database.

    `answers`: the command prints an answer; a worker does not, and its program's output stays where it is.
    """
    found = require_app(url, target)
    app = _loaded(found, answers=answers)
    core_of(app).settings = replace(app.settings, url=_placed(url or app.settings.url, found))
    machines_of(app).engine.app = found.app
    return app


def calling_app(url: str | None) -> Holdfast:
    """The app of the user's program, for a command that enqueues and leaves the work to workers."""
    app = app_with_code(None, url)
    core_of(app).binding.embedded = False
    return app


def program_for(url: str | None) -> Holdfast:
    """The app of the user's program with its code, if one is named; else one that has a database and nothing else."""
    found = find(url)
    return calling_app(url) if found.app else Holdfast(settings=settings_of(found), embedded=False)


def load_app(target: str, folder: Path | None = None) -> Holdfast:
    """The app that `module:name` names; `:name` may be left out when the module has just one."""
    module_name, _, name = target.partition(":")
    sys.path.insert(0, str(folder or Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and not f"{module_name}.".startswith(f"{problem.name}."):
            raise UsageError(f"{module_name} cannot be imported: it needs the module {problem.name!r}.") from problem
        raise UsageError(
            f"cannot find module {module_name!r}; write it as Python would import it from this folder."
        ) from problem
    except BadSetting:  # of a variable or an argument, not of the program
        raise
    except Exception as problem:
        failed = UsageError(f"{module_name} cannot be imported: {message_of(problem).removesuffix('.')}.")
        failed.add_note(traceback_of(_from_its_module(problem)))
        raise failed from problem
    found = [value for value in vars(module).values() if isinstance(value, Holdfast)]
    app = getattr(module, name, None) if name else (found[0] if len(found) == 1 else None)
    if not isinstance(app, Holdfast):
        names = [key for key, value in vars(module).items() if isinstance(value, Holdfast)]
        hint = f"it has {', '.join(names)}" if names else "it defines none"
        raise UsageError(f"{target!r} is not a Holdfast app ({hint}); write module:name, as in app:hf.")
    return app


def _from_its_module(problem: Exception) -> Exception:
    """The exception without the frames in which we and Python import the module."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_IMPORTING):
        trace = trace.tb_next
    return problem.with_traceback(trace)


def database_label(settings: Settings) -> str:
    """The database, for people: where it is, without its password."""
    label = describe_url(settings.url)
    own_schema = dialect_of(settings.url) == "postgres" and settings.schema != Settings().schema
    return f"{label} (schema {settings.schema})" if own_schema else label


def settings_of(target: Target) -> Settings:
    """The settings of what was found; the program is imported if an app was."""
    if not target.app:
        settings = Settings.from_environment()
        return replace(settings, url=target.url or settings.url)
    try:
        settings = _loaded(target).settings
    except HoldfastError as problem:
        raise UsageError(f"{problem} To use a database without importing code, name it with --url.") from problem
    return replace(settings, url=_placed(target.url or settings.url, target))


def _loaded(target: Target, *, answers: bool = True) -> Holdfast:
    """The app. `answers`: the command prints an answer, and what the program prints when imported is not part of it."""
    try:
        with contextlib.redirect_stdout(sys.stderr if answers else sys.stdout):
            return load_app(target.app, target.folder)
    except HoldfastError as problem:
        if target.named_by == "--app":
            raise
        raise UsageError(f"{target.named_by} names the app {target.app!r}: {problem}") from problem


def _placed(url: str, target: Target) -> str:
    """A relative file of an app in another folder is in that folder, wherever the command is typed."""
    if target.url or target.folder == Path.cwd() or dialect_of(url) != "sqlite":
        return url
    path = sqlite_path(url)
    return url if path == ":memory:" else f"sqlite:///{target.folder / path}"


def _project(here: Path) -> tuple[Path, str] | None:
    """The nearest pyproject.toml that names an app, and the app. Above this folder only the same repository counts:
    what lies further up may be anybody's."""
    above = [here, *here.parents]
    roots = [place for place in above if any((place / name).exists() for name in _REPOSITORY)]
    for folder in above[: above.index(roots[0]) + 1] if roots else [here]:
        file = folder / "pyproject.toml"
        if file.is_file() and (app := _named_in(file)):
            return file, app
    return None


def _named_in(file: Path) -> str | None:
    try:
        table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("holdfast", {})
        app = table.get("app")
    except (OSError, ValueError, AttributeError) as problem:
        raise UsageError(f"{file} cannot be read: {problem}. Fix it, or name the database with --url.") from problem
    for name in table:
        if name not in _KEYS:
            raise UsageError(f"{file}: there is no key {name!r} under [tool.holdfast].{did_you_mean(name, _KEYS)}")
    if app is not None and not isinstance(app, str):
        raise UsageError(f'{file}: app under [tool.holdfast] must be text such as "app:hf"; got {app!r}.')
    return app
