"""The doctor's judgement about agents: what waits for a person to fix, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from holdfast.agents.lanes import list_lanes
from holdfast.agents.queries import wrong_totals
from holdfast.agents.rows import ClosedLane
from holdfast.client.core import Core
from holdfast.errors import HoldfastError
from holdfast.kernel.database import Database
from holdfast.kernel.doctor import Finding, examine
from holdfast.kernel.drivers import connect
from holdfast.kernel.queues import CAP
from holdfast.text import shell_word


async def examine_app(app: Core) -> list[Finding]:
    """All that the doctor says of an app's database and of the work in it."""
    database = connect(app.settings.url, app.settings, app.ports)
    try:
        return [*await examine(database, app.settings, app.ports), *await examine_agents(database)]
    finally:
        await database.close()


async def examine_agents(database: Database) -> list[Finding]:
    """What the store says of agents, judged; nothing where it cannot be asked, which the kernel's doctor has said."""
    try:
        lanes = await database.transact(list_lanes)
        return [*judge_lanes(lanes), *judge_totals(await database.transact(wrong_totals))]
    except (HoldfastError, OSError):
        return []


def judge_lanes(lanes: Sequence[ClosedLane]) -> Iterator[Finding]:
    for lane in lanes:
        count = f"{min(lane.waiting, CAP):,}{' or more' if lane.waiting > CAP else ''}"
        waiting = f"{count} wait{'s' if lane.waiting == 1 else ''} behind it"
        if lane.person:
            yield Finding(
                "lanes",
                "warning",
                f"lane {lane.name} has waited for a person since {_at(lane.updated_at)}, and {waiting}: {lane.reason}",
                f"Fix that, then run `holdfast lanes open {shell_word(lane.name)}`.",
            )
        else:
            until = _at(lane.closed_until or lane.now)
            yield Finding("lanes", "note", f"lane {lane.name} is closed until {until}, and {waiting}: {lane.reason}")


def judge_totals(sessions: Sequence[str]) -> Iterator[Finding]:
    """Triggers of the database keep the totals: they differ only if somebody changed rows or triggers by hand."""
    for session in sessions:
        yield Finding(
            "sessions",
            "problem",
            f"what session {session} has used according to its totals is not the sum of its runs and compactions",
            "Stop the workers, then `holdfast migrate --to 20` and `holdfast migrate` count all totals again.",
        )


def _at(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
