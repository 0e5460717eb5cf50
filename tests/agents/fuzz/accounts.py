"""What was used, by every account of it: turns, totals of sessions, the tally and its tail; also when rows are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from holdfast import Holdfast
from holdfast.agents import queries
from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.rows import RunRow
from holdfast.agents.values import Turn
from holdfast.app import core_of

COUNTERS: Final = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens", "cost_nano")
_EVERY: Final = 100_000
_BEGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Accounts:
    """`problems` are the accounts that say something else than the turns and compactions themselves."""

    def __init__(
        self, app: Holdfast, rows: Mapping[str, RunRow], turns: Mapping[str, Sequence[Turn]], spent: Any
    ) -> None:
        self._app, self._database = app, core_of(app).runtime().database
        self._sessions: dict[str, Counter[str]] = {}
        self._turns: Counter[str] = Counter()  # of a session's runs; a fork counts on from the turns of its history
        for row in rows.values():
            self._turns[row.session] += row.turns
            for turn in turns[row.id]:
                if turn.state == "completed":
                    self._add(row.session, [("turns", 1), *((name, getattr(turn.usage, name)) for name in COUNTERS)])
        compactions: Iterable[CompactionRow] = spent
        for each in compactions:
            self._add(each.session, [(name, getattr(each, name)) for name in COUNTERS])

    def _add(self, session: str, used: Iterable[tuple[str, int]]) -> None:
        self._sessions.setdefault(session, Counter()).update(dict(used))

    async def problems(self) -> list[str]:
        wrong = await self._database.transact(queries.wrong_totals, look=_EVERY, most=_EVERY)
        found = [f"totals of session {each}" for each in wrong]
        for id, sum in self._sessions.items():
            usage, told = await self._app.sessions[id].usage(), Counter({**sum, "turns": self._turns[id]})
            found += [f"session {id}: {usage} for {told}"] if _differ(usage, told) else []
        return found + await self._used("at the end")

    async def problems_when_gone(self) -> list[str]:
        """After the chore has counted, and each session was deleted."""
        while await self._database.transact(queries.count, self._app.settings):
            pass
        found = await self._used("after the chore")
        for id in list(self._sessions):
            await self._app.sessions[id].delete()
        return found + await self._used("after deleting the sessions")

    async def _used(self, when: str) -> list[str]:
        whole = sum(self._sessions.values(), Counter[str]())
        told = await self._app.budgets.used(since=_BEGIN)
        if not told:
            return [f"nothing was used {when}, and {whole} was"] if +whole else []
        return [f"used {when}: {told[0]} for {whole}"] if _differ(told[0], whole) else []


def _differ(told: Any, sum: Counter[str]) -> bool:
    return any(getattr(told, name) != sum[name] for name in ("turns", *COUNTERS))
