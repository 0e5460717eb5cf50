"""Stores for the contenders: a throw-away PostgreSQL with durable commits, a Redis, a folder of SQLite files.

A store that takes long to fill is filled once and then copied for each run, so that every run of a contender
begins from the same rows. All listen on the loopback only, and go with the benchmark.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import apsw
import psycopg
from psycopg import sql

from bench.contenders import Contender
from bench.contenders.protocol import Order
from bench.environments import NotRun
from bench.players import play
from bench.redis import find_redis
from tests.support.postgres import Server
from tests.support.processes import Workspace, end, free_port

_FILL_LIMIT = 900.0
_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a store comes to be as a run wants it; the name tells one recipe from another.

    `settled`: PostgreSQL has vacuumed and knows its statistics, as after a quiet night.
    """

    name: str
    make: Callable[[Contender, str], None]
    settled: bool = True


def filled(jobs: int) -> Recipe:
    """A store with so many jobs waiting and nothing else."""

    def make(contender: Contender, url: str) -> None:
        prepare(contender, url)
        fill(contender, url, jobs)

    return Recipe(f"filled_{jobs}", make)


def prepare(contender: Contender, url: str) -> None:
    play(contender, "prepare", Order(url=url), limit=_FILL_LIMIT)


def fill(contender: Contender, url: str, jobs: int) -> None:
    if jobs:
        chunk = _CHUNK if contender.bulk else 1
        play(contender, "fill", Order(url=url, n=jobs, chunk=chunk), limit=_FILL_LIMIT)


@dataclass(frozen=True, slots=True)
class Lent:
    """A store as one run has it. `unfinished` says whether a job is left that has not ended."""

    url: str
    unfinished: Callable[[], bool]


class Stores(Protocol):
    def lend(self, contender: Contender, recipe: Recipe) -> AbstractContextManager[Lent]:
        """A store of this contender, made by the recipe; it is removed afterwards."""

    def close(self) -> None: ...


class PostgresStores:
    def __init__(self, **settings: str) -> None:
        self._settings = settings
        self._made: set[str] = set()
        self._number = 0

    @cached_property
    def server(self) -> Server:
        server = Server(settings=self._settings)
        server.start()
        return server

    @contextmanager
    def lend(self, contender: Contender, recipe: Recipe) -> Iterator[Lent]:
        template = self._template(contender, recipe)
        self._number += 1
        name = f"run_{self._number}"
        self._copy(template, name)
        try:
            with psycopg.connect(self.server.url(name), autocommit=True) as watcher:
                yield Lent(self.server.url(name), lambda: _asked(watcher, contender.unfinished))
        finally:
            self.server.drop_database(name)

    def facts(self) -> dict[str, str]:
        """The settings that decide how durable a commit is and how much memory it may use."""
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "full_page_writes")
        with psycopg.connect(self.server.url()) as connection:
            return {name: str(connection.execute(f"show {name}".encode()).fetchall()[0][0]) for name in names}

    def configure(self, name: str, text: str) -> None:
        """Change a setting of the running server."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            change = sql.SQL("alter system set {} = {}").format(sql.Identifier(name), sql.Literal(text))
            connection.execute(change)
            connection.execute("select pg_reload_conf()")

    def close(self) -> None:
        if "server" in self.__dict__:
            self.server.close()

    def _template(self, contender: Contender, recipe: Recipe) -> str:
        name = f"{contender.name}_{recipe.name}"
        if name in self._made:
            return name
        self.server.drop_database(name)  # one that was begun and failed
        url = self.server.create_database(name)
        recipe.make(contender, url)
        if recipe.settled:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("vacuum analyze")
        self._made.add(name)
        return name

    def _copy(self, template: str, name: str) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            # Not by the log, which would write a large template twice.
            how = sql.SQL(" strategy file_copy" if connection.info.server_version >= 150_000 else "")
            names = (sql.Identifier(name), sql.Identifier(template))
            connection.execute(sql.SQL("create database {} template {}").format(*names) + how)
            connection.execute("checkpoint")  # what the copy left to write is not the run's to pay


class SqliteStores:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sqlite-"))
        self._made: set[Path] = set()
        self._number = 0

    @contextmanager
    def lend(self, contender: Contender, recipe: Recipe) -> Iterator[Lent]:
        template = self.folder / f"{contender.name}-{recipe.name}"
        if template not in self._made:
            shutil.rmtree(template, ignore_errors=True)
            template.mkdir()
            recipe.make(contender, f"sqlite:///{template / 'bench.db'}")
            self._made.add(template)
        self._number += 1
        run = self.folder / f"run-{self._number}"
        shutil.copytree(template, run)
        connection = apsw.Connection(str(run / "bench.db"))
        try:
            yield Lent(
                f"sqlite:///{run / 'bench.db'}",
                lambda: bool(contender.unfinished and connection.execute(contender.unfinished).get),
            )
        finally:
            connection.close()
            shutil.rmtree(run)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisStores:
    """One Redis of our own, without persistence unless it is given; emptied and filled anew for each run."""

    def __init__(self, **options: str) -> None:
        self._options = options
        self._workspace: Workspace | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @contextmanager
    def lend(self, contender: Contender, recipe: Recipe) -> Iterator[Lent]:
        url = f"redis://127.0.0.1:{self.empty_port()}/0"
        recipe.make(contender, url)
        yield Lent(url, lambda: False)

    def empty_port(self) -> int:
        """Where it listens, without anything in it."""
        if self._process is None:
            self._start()
        self._command("FLUSHALL")
        return self._port

    def close(self) -> None:
        if self._process is not None:
            end(self._process, signal.SIGTERM)
            self._process = None
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    def _start(self) -> None:
        found = find_redis()
        self._workspace = Workspace("redis", pidfile="redis.pid")
        folder = self._workspace.path
        program = folder / "redis-server"  # where the account that runs it can reach it, under the name it serves by
        shutil.copy(found, program)
        program.chmod(0o755)
        self._port = free_port()
        options = {
            "bind": "127.0.0.1",
            "port": str(self._port),
            "dir": str(folder),
            "pidfile": str(folder / "redis.pid"),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            **self._options,
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = self._workspace.spawn(program, *arguments)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._command("PING")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise NotRun(f"redis-server did not start: {self._workspace.log_tail(1)}")

    def _command(self, word: str) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as line:
            line.sendall(f"{word}\r\n".encode())
            line.recv(64)


def _asked(connection: psycopg.Connection[tuple[object, ...]], question: str) -> bool:
    return bool(connection.execute(question.encode()).fetchall()[0][0])
