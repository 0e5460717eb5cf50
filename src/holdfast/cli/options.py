"""What commands share: which database, which settings, JSON or a table."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.settings import Settings

url_option = click.option("--url", help="Database URL; default: HOLDFAST_URL, else sqlite:///.holdfast/holdfast.db.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
set_option = click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting; `holdfast settings` lists them."
)


def app_for(url: str | None) -> Holdfast:
    """An app without jobs of its own, for looking into a store."""
    return Holdfast(url, embedded=False)


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


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    if not rows:
        click.echo(empty)
        return
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headings), *texts]) for i in range(len(headings))]
    for line in [list(headings), *texts]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


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
        if name.endswith("_at") or name in ("lease_until", "held_until"):
            shown[name] = moment(value)
        else:
            shown[name] = decode(value) if name in stored and value is not None else value
    return shown
