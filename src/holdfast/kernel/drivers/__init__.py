"""The two databases behind one door: connections, codecs, wake-ups, presence. No business statement lives here."""

from __future__ import annotations

from holdfast.clock import Ports
from holdfast.errors import BadUrl, MissingExtra
from holdfast.kernel.database import Database
from holdfast.settings import Settings

SCHEMES = "sqlite:///path, sqlite://:memory: or postgresql://user@host/database"


def connect(url: str, settings: Settings, ports: Ports) -> Database:
    """The database a URL names; nothing is opened yet."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise BadUrl(f"{url!r} is not a database URL; write {SCHEMES}.")
    if scheme == "sqlite":
        from holdfast.kernel.drivers.sqlite import SqliteDatabase

        return SqliteDatabase(_sqlite_path(url, rest), settings, ports)
    if scheme in ("postgresql", "postgres"):
        try:
            from holdfast.kernel.drivers.postgres import PostgresDatabase
        except ModuleNotFoundError as missing:
            if missing.name != "asyncpg":
                raise
            raise MissingExtra("postgres", "a postgresql:// database") from None
        return PostgresDatabase(url, settings, ports)
    raise BadUrl(f"{scheme}:// is not a database Holdfast knows; write {SCHEMES}.")


def _sqlite_path(url: str, rest: str) -> str:
    if rest in (":memory:", "/:memory:"):
        return ":memory:"
    if not rest.startswith("/") or rest == "/":
        raise BadUrl(f"{url!r} names no file: sqlite:///relative.db or sqlite:////absolute/path.db.")
    return rest[1:]
