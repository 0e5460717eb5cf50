"""A next release that nobody has made: this code, and two more migrations.

The first adds columns, an index and a table, and code of before works beside it. The second moves rows, and code of
before may not use the tables after it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import holdfast
from holdfast.kernel import migrate
from holdfast.kernel.migrate import Migration
from holdfast.kernel.sql import Dialect

ADDS, MOVES = 2, 3  # the versions of the two
_FILES = Path(__file__).with_name("next_migrations")
_known = migrate.migrations


def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Those of this code, and the two: for `migrate.migrations`."""
    files = sorted(_FILES.glob(f"*.{dialect}.sql"))
    return (*_known(dialect), *(migrate._read(file.name, file.read_text("utf-8")) for file in files))


def build(folder: Path, *, version: int) -> Path:
    """The program whose own version that is, as a folder for PYTHONPATH."""
    package = folder / "holdfast"
    shutil.copytree(Path(holdfast.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for number in range(ADDS, version + 1):
        for file in _FILES.glob(f"{number:04}_*.sql"):
            shutil.copy(file, package / "kernel/sql/migrations")
    return folder
