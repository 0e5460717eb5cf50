"""What commands share: which database, which settings, JSON or a table."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.agents.collections import Tenant
from holdfast.app import Holdfast
from holdfast.errors import StoreRefused, UsageError
from holdfast.kernel.drivers import dialect_of, sqlite_path
from holdfast.kernel.queues import CAP
from holdfast.settings import Settings

T = TypeVar("T")

url_option = click.option("--url", help="Database URL; default: HOLDFAST_URL, else sqlite:///.holdfast/holdfast.db.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
tenant_option = click.option("--tenant", help="Of this tenant; default: of nobody in particular.")
set_option = click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting; `holdfast settings` lists them."
)


def app_for(url: str | None) -> Holdfast:
    """An app without jobs of its own, for looking into a store that is there."""
    app = Holdfast(url, embedded=False)
    if dialect_of(app.url) == "sqlite":
        path = sqlite_path(app.url)
        if path != ":memory:" and not Path(path).exists():
            raise StoreRefused(
                f"there is no database at {path} yet: a worker or the first enqueue makes it, "
                f"or run `holdfast migrate`."
            )
    return app


def ask(url: str | None, question: Callable[[Holdfast], Coroutine[Any, Any, T]]) -> T:
    """The answer of the store to one question."""

    async def asking() -> T:
        async with app_for(url) as app:
            return await question(app)

    return asyncio.run(asking())


def seen_by(app: Holdfast, tenant: str | None) -> Holdfast | Tenant:
    """The app, or what one tenant sees of it."""
    return app if tenant is None else app.tenant(tenant)


def load_app(target: str) -> Holdfast:
    """The app that `module:name` names; `:name` may be left out when the module has just one."""
    module_name, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and not f"{module_name}.".startswith(f"{problem.name}."):
            raise UsageError(f"{module_name} cannot be imported: it needs the module {problem.name!r}.") from problem
        raise UsageError(
            f"there is no module {module_name!r} here; write it as Python would import it from this folder."
        ) from problem
    except Exception as problem:
        raise UsageError(f"{module_name} cannot be imported: {type(problem).__name__}: {problem}.") from problem
    found = [value for value in vars(module).values() if isinstance(value, Holdfast)]
    app = getattr(module, name, None) if name else (found[0] if len(found) == 1 else None)
    if not isinstance(app, Holdfast):
        names = [key for key, value in vars(module).items() if isinstance(value, Holdfast)]
        hint = f"it has {', '.join(names)}" if names else "it defines none"
        raise UsageError(f"{target!r} is not a Holdfast app ({hint}); write module:name, as in app:hf.")
    return app


def changed(settings: Settings, changes: Iterable[str]) -> Settings:
    texts: dict[str, str] = {}
    for change in changes:
        name, separator, value = change.partition("=")
        if not separator:
            raise UsageError(f"--set takes NAME=VALUE, not {change!r}.")
        texts[name] = value
    return settings.override(texts)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def plain(text: str) -> str:
    """Text that cannot command a terminal: what jobs and their errors say comes from anywhere."""
    return "".join(char if char.isprintable() else " " for char in text)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    if not rows:
        click.echo(empty)
        return
    texts = [[plain(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headings), *texts]) for i in range(len(headings))]
    for line in [list(headings), *texts]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_pairs(pairs: Mapping[str, object]) -> None:
    """One thing, a line for each of its properties that is set."""
    width = max([20, *map(len, pairs)])
    for name, value in pairs.items():
        if value not in (None, "", {}, []):
            click.echo(f"{name:{width}} {value}")


def counted(jobs: int) -> str:
    """A count that stops at a cap."""
    return f"{jobs:,}+" if jobs >= CAP else f"{jobs:,}"


def rough(us: int) -> str:
    """A stretch of time in one unit, for people."""
    seconds = max(0, us) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def progress(items: Sequence[T], label: str) -> Any:
    """The items with a bar beside them, on a terminal; elsewhere without."""
    return click.progressbar(items, label=label, file=sys.stderr, hidden=not sys.stderr.isatty())


def moment(us: int | None) -> str | None:
    """A stored time as ISO text."""
    if us is None:
        return None
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def readable(row: Mapping[str, Any], decode: Callable[[str], Any], *, texts: Iterable[str]) -> dict[str, Any]:
    """A record as JSON for people: times as ISO text, stored JSON as values."""
    stored = frozenset(texts)
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_at") or name in ("lease_until", "held_until", "now"):
            shown[name] = moment(value)
        else:
            shown[name] = decode(value) if name in stored and value is not None else value
    return shown


def run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run until Ctrl-C, which ends it well; also where a shell that started it in the background had SIGINT ignored."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
