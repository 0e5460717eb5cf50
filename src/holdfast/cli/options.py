"""What commands share: options, a question to the store, JSON or a table."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from holdfast import values
from holdfast.access.principals import Principal, os_user
from holdfast.agents.api.lists import Tenant
from holdfast.app import Holdfast
from holdfast.cli import target
from holdfast.errors import UsageError
from holdfast.kernel.queues import CAP
from holdfast.settings import Settings
from holdfast.text import shown, shown_value
from holdfast.values import Page, as_json, iso

# What commands write into the audit: who typed a command that changes something, and what came of it.
#
# One list of such commands, kept by the one function through which commands reach the store.


CHANGING = frozenset(
    {
        "action submit",
        "budgets delete",
        "budgets set",
        "epoch bump",
        "jobs cancel",
        "jobs retry",
        "lanes open",
        "machine resume",
        "machine signal",
        "plan rm",
        "plan submit",
        "prune",
        "queues pause",
        "queues resume",
        "resp keys add",
        "resp keys revoke",
        "runs answer",
        "runs approve",
        "runs cancel",
        "runs deny",
        "runs fork",
        "runs retry",
        "schedules delete",
        "schedules pause",
        "schedules resume",
        "schedules run",
        "sessions compact",
        "sessions fork",
        "sessions prune",
        "sessions restore",
        "sessions retire",
        "tenants erase",
        "tenants retention",
        "tokens create",
        "tokens revoke",
        "tokens rotate",
        "workers drain",
        "workers forget",
    }
)
_REASON = "holdfast.reason"  # where a command keeps it
# Where and how, and what people and models say to each other: that has no place in an audit.
_LEFT_OUT = frozenset(
    {*("url", "app", "as_json", "wide", "yes"), *("changed", "inputs", "message", "prompt", "results", "text")}
)


def caller() -> Principal:
    """Who types: a command may do all that the user may do who opens the database."""
    return Principal(f"{os_user()} (command)", "admin")


def keep_reason(context: click.Context, _: click.Parameter, reason: str) -> None:
    """The callback of `--reason`: what a person says is for the audit, not for the command."""
    context.meta[_REASON] = reason


@asynccontextmanager
async def recorded(app: Holdfast, *, changes: bool = True) -> AsyncIterator[None]:
    """Around what the present command asks of the store: if it changes something, that is written."""
    context = click.get_current_context(silent=True)
    name = "" if context is None else context.command_path.partition(" ")[2]
    given = {} if context is None else context.params
    if not changes or name not in CHANGING or given.get("dry_run"):
        yield
        return
    why = {} if context is None else {"reason": context.meta.get(_REASON)}
    async with app.access.audit.recording(caller(), name, subject_of(given), detail=detail_of({**why, **given})):
        yield


def subject_of(given: Mapping[str, Any]) -> str:
    """What the command is about: its first argument."""
    found = next((given[name] for name in ("id", "ids", "name", "plan", "queue", "tenant") if given.get(name)), "")
    return " ".join(map(str, found)) if isinstance(found, tuple) else str(found)


def detail_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The words of the command, without those that are left out."""
    told = {name: value for name, value in given.items() if value not in (None, "", (), False)}
    return {name: str(value) for name, value in told.items() if name not in _LEFT_OUT}


T = TypeVar("T")

app_for, url_option = target.app_for, target.url_option  # beside the other options, for all commands
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many."
)
after_option = click.option("--after", metavar="CURSOR", help="Continue a list: what the last part said.")
tenant_option = click.option("--tenant", help="Only of this tenant; default: of no tenant.")
as_tenant_option = click.option("--tenant", help="Say it as this tenant may read it, if it is the tenant's.")
reason_option = click.option(
    "--reason", default="", expose_value=False, callback=keep_reason, help="Why you do it: the audit keeps it."
)
set_option = click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting; `holdfast settings` lists all."
)


def ask(
    url: str | None,
    question: Callable[[Holdfast], Coroutine[Any, Any, T]],
    *,
    changes: bool = True,
    creates: bool = False,
) -> T:
    """The answer of the store to one question. If the command is one that `changes` something, the audit has it; if it
    is one that `creates` something, it makes the database too."""
    app = (
        target.app_that_creates(url) if creates else app_for(url)
    )  # it may import the program, which may run an event loop of its own

    async def asking() -> T:
        async with app, recorded(app, changes=changes):
            return await question(app)

    return asyncio.run(asking())


def seen_by(app: Holdfast, tenant: str | None) -> Holdfast | Tenant:
    """The app, or what one tenant sees of it."""
    return app if tenant is None else app.tenant(tenant)


def changed(settings: Settings, changes: Iterable[str]) -> Settings:
    texts: dict[str, str] = {}
    for change in changes:
        name, separator, value = change.partition("=")
        if not separator:
            raise UsageError(f"--set takes NAME=VALUE; got {change!r}.")
        texts[name] = value
    return settings.override(texts)


def print_json(value: object) -> None:
    """Print a public value, or what is made of such values, as JSON."""
    click.echo(json.dumps(as_json(value), indent=2, ensure_ascii=False))


def print_page(page: Page[T]) -> None:
    """Print the items of a page as a JSON list; stderr says where the list continues."""
    print_json(list(page))
    say_more(page)


async def all_of(listing: Callable[..., Awaitable[Page[T]]], **filters: Any) -> list[T]:
    """Every item of a list, page by page: for lists that people read whole."""
    page = await listing(**filters)
    items = list(page)
    while page.next is not None:
        page = await listing(after=page.next, **filters)
        items += page
    return items


def say_more(page: Page[T]) -> None:
    if page.next is not None:
        click.echo(f"there may be more: add --after {page.next}", err=True)


def print_pairs(pairs: Mapping[str, object]) -> None:
    """One thing, a line for each of its properties that is set."""
    width = max([20, *map(len, pairs)])
    for name, value in pairs.items():
        if value not in (None, "", {}, []):
            said = shown_value(value)
            click.echo(f"{name:{width}} {shown(text_of(said) if isinstance(said, dict | list) else said)}")


def counted(jobs: int) -> str:
    """A count that stops at a cap."""
    return f"{jobs:,}{over_cap(jobs)}"


def over_cap(number: int) -> str:
    """What `plural` says after a count that stopped at a cap."""
    return "+" if number >= CAP else ""


def rough(span: timedelta | int) -> str:
    """A stretch of time in one unit, for people; a number counts microseconds."""
    number, unit = spelled(span // timedelta(microseconds=1) if isinstance(span, timedelta) else span)
    return f"{number}{unit[0]}"


def spelled(us: int) -> tuple[int, str]:
    """So many of one unit, for people: it has at least two digits of meaning."""
    seconds = max(0, us) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return seconds // size, unit
    return seconds, "s"


def progress(items: Sequence[T], label: str) -> Any:
    """The items with a bar beside them, on a terminal; elsewhere without."""
    return click.progressbar(items, label=label, file=sys.stderr, hidden=not sys.stderr.isatty())


def moment(at: datetime | int | None) -> str | None:
    """A time as ISO text."""
    if at is None:
        return None
    return iso(values.moment(at) if isinstance(at, int) else at)


def text_of(value: object) -> str:
    """A value as JSON on one line, for people."""
    return json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":"))


def run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run until Ctrl-C, which ends it well; also where a shell that started it in the background had SIGINT ignored."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
