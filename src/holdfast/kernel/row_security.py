"""Row security on PostgreSQL: what belongs to another tenant is not there for a request of one, whatever it asks.

`holdfast migrate --row-security` turns it on. It is a second line behind the WHERE of each statement, and costs only
those requests. See `sql/security/row_security.sql`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, Literal

from holdfast.errors import StoreUnfit, UsageError
from holdfast.kernel.database import Database, Guard
from holdfast.kernel.sql import Dialect, in_schema

Switch = Literal["on", "off"]
OLDEST_SERVER = 150_000
_STANDING = """
select current_setting('server_version_num')::integer as version,
    coalesce((select relrowsecurity from pg_class where oid = to_regclass('holdfast.run')), false) as secured
"""


def role_of(schema: str) -> str:
    """The role that a tenant's requests take."""
    return f"{schema}_web"


def tenant_setting(schema: str) -> str:
    """The setting that names the tenant."""
    return f"{schema}.tenant"


def script(switch: Switch, schema: str) -> list[str]:
    """The statements that turn it on or off."""
    text = resources.files("holdfast.kernel.sql").joinpath("security/row_security.sql").read_text("utf-8")
    part = re.split(r"^-- (?:on|off)\n", text, flags=re.M)[1 if switch == "on" else 2]
    part = re.sub(r"^[ \t]*--.*\n", "", part, flags=re.M).replace("holdfast_web", role_of(schema))
    part = re.sub(r"(?<=schema )holdfast\b|(?<=schemaname = ')holdfast\b", schema, part)
    return [in_schema(each.strip(), "postgres", schema) for each in re.split(r"\n\n+", part) if each.strip()]


def dump(switch: Switch | None, dialect: Dialect, schema: str) -> str:
    """The SQL that a person may run instead."""
    check(switch, dialect)
    return "" if switch is None else "".join(f"{each};\n" for each in script(switch, schema))


def check(switch: Switch | None, dialect: Dialect) -> None:
    if switch is not None and dialect != "postgres":
        raise UsageError("row security needs PostgreSQL: a SQLite file has no roles. Give each tenant its own file.")


async def turn(switch: Switch, database: Database, schema: str) -> list[str]:
    """Turn it on or off, and say what was done. On again, it covers tables that have come since."""
    check(switch, database.dialect)
    stored = await database.stored_schema()
    if stored is None:
        raise StoreUnfit("there are no tables to secure: run `holdfast migrate` first.")
    await database.script(script(switch, schema), at=stored.version, guard=Guard([], _asked(schema), _judge))
    return [f"row security is {switch}"]


async def renew(database: Database, schema: str) -> list[str]:
    """After a migration: cover what is new, if it is on."""
    stored = await database.stored_schema()
    if database.dialect != "postgres" or stored is None:
        return []
    standing: list[Any] = []
    await database.script([], at=stored.version, guard=Guard([], _asked(schema), standing.extend))
    return await turn("on", database, schema) if standing and standing[0]["secured"] else []


def _asked(schema: str) -> str:
    return in_schema(_STANDING, "postgres", schema)


def _judge(rows: Sequence[Any]) -> None:
    if rows[0]["version"] < OLDEST_SERVER:
        raise StoreUnfit("row security needs PostgreSQL 15 or newer, where a view can read with its reader's rights.")
