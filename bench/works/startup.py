"""Start-up: how long a person waits for help, a deployment for its worker, and what it then occupies."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psycopg

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.environments import NotRun, clean_environment
from bench.figures import Sample, Subject
from bench.places import ROOT
from bench.players import Player
from bench.session import Session
from bench.stores import filled

HELP = Subject("startup.help", "holdfast --help", "s", more_is_better=False)
READY = Subject("startup.ready", "job worker ready", "s", more_is_better=False)
MEMORY = Subject("startup.memory", "memory of an idle worker", "MB", more_is_better=False)

APP = "bench.contenders.holdfast:hf"
ACTIVE = "select count(*) from holdfast.worker where status = 'active' and presence = 1"
SETTLE = 3.0
_LOOK = 0.005

HOW = """
`holdfast --help` from its start to its end. `holdfast worker` on PostgreSQL from its start until it is registered and
shows its presence; then its resident memory, some seconds after it has run its first job.
"""


def measure(session: Session) -> None:
    command = str(Path(sys.executable).parent / "holdfast")

    def run(contender: Contender) -> None:
        session.record(HELP, contender.name, _help(command))
        with session.postgres.lend(contender, filled(1)) as store:
            started = time.monotonic()
            words = [command, "worker", APP, "--url", store.url]
            with (
                Player("holdfast worker", words, limit=session.scale.limit) as player,
                psycopg.connect(store.url, autocommit=True) as looker,
            ):
                while looker.execute(ACTIVE).fetchall()[0][0] == 0:
                    player.check()
                    time.sleep(_LOOK)
                session.record(READY, contender.name, Sample(time.monotonic() - started))
                while store.unfinished():
                    player.check()
                    time.sleep(_LOOK)
                time.sleep(SETTLE)
                session.record(MEMORY, contender.name, Sample(meter.resident_mb(player.pid)))

    contenders = session.contenders("postgres", only=frozenset({HOLDFAST}))
    _help(command)  # the first start compiles the modules
    session.rounds(contenders, run, rounds=session.scale.startup)


def _help(command: str) -> Sample:
    started = time.monotonic()
    done = subprocess.run([command, "--help"], cwd=ROOT, env=clean_environment(), capture_output=True, check=False)
    if done.returncode:
        raise NotRun(f"holdfast --help ended with {done.returncode}")
    return Sample(time.monotonic() - started)
