"""What most chaos tests need: a database, eyes on it, processes to hurt, and a witness outside of it all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast import Holdfast
from holdfast.kernel.broker_rows import WorkerRow
from tests.chaos.crew import Crew, Member
from tests.chaos.watch import Watch
from tests.support.apps import eventually


class Gate:
    """Holds the jobs `hold` and `hold_in_thread` until it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def open(self) -> None:
        self._path.touch()

    def shut(self) -> None:
        self._path.unlink()


class Witness:
    """The file in which handlers note what they do; see `tests.chaos.jobs.note`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def __str__(self) -> str:
        return str(self._path)

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()

    async def saw(self, *lines: str, times: int = 1) -> None:
        """Wait until each of these was noted so often."""

        async def all_noted() -> bool:
            noted = self.lines
            return all(noted.count(line) >= times for line in lines)

        await eventually(all_noted)


@dataclass(frozen=True)
class Scene:
    url: str
    folder: Path
    hf: Holdfast  # the app of the workers, as a client that enqueues
    watch: Watch
    crew: Crew
    witness: Witness

    def gate(self, name: object = "") -> Gate:
        return Gate(self.folder / f"gate-{name}")

    def worker(self, *options: str, url: str = "", **settings: object) -> Member:
        return self.crew.worker(url or self.url, *options, **settings)

    async def registered(self, *options: str, url: str = "", **settings: object) -> Member:
        """A worker that is ready to work."""
        member = self.worker(*options, url=url, **settings)
        await member.says("registered as")
        return member

    async def row_of(self, member: Member) -> WorkerRow:
        """The worker in this process, as the store knows it, once it has registered."""

        async def look() -> WorkerRow | None:
            assert member.running, f"the worker ended:\n{member.output}"
            return next((row for row in await self.watch.workers() if row.pid == member.pid), None)

        row = await eventually(look)
        assert row is not None
        return row

    async def given_up(self, member: Member) -> None:
        """Wait until the worker in this process counts as lost."""

        async def look() -> bool:
            return any(row.pid == member.pid and row.status == "lost" for row in await self.watch.workers(all=True))

        await eventually(look)
