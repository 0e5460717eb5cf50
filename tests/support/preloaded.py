"""What the nursery does before it forks: all that programs import, and the statements that each would render."""

from __future__ import annotations

import importlib

import holdfast.app
import holdfast.facades.flatagents
import holdfast.http.app
import holdfast.http.server
import holdfast.machines.run
from holdfast.cli import COMMANDS
from holdfast.kernel.drivers import postgres, sqlite
from holdfast.kernel.sql import catalogue
from holdfast.kernel.statements import GROUPS
from holdfast.settings import Settings

__all__ = ["holdfast", "postgres", "sqlite"]

for command in COMMANDS:
    importlib.import_module(f"holdfast.cli.{command}")
catalogue(GROUPS, "sqlite", "")
catalogue(GROUPS, "postgres", Settings().schema)
