"""The two databases behind one door: connections, codecs, wake-ups, presence. No business statement lives here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Ports
from holdfast.errors import BadUrl, MissingExtra
from holdfast.kernel.database import Database, Owner
from holdfast.kernel.drivers.addresses import masked, server_of
from holdfast.kernel.sql import Dialect
from holdfast.settings import Settings

SCHEMES = "sqlite:///path, sqlite://:memory: or postgresql://user@host/database"


def connect(url: str, settings: Settings, ports: Ports, layers: Sequence[Owner] = ()) -> Database:
    """The database a URL names; nothing is opened yet. `layers` are told when jobs of theirs end by this connection."""
    if dialect_of(url) == "sqlite":
        from holdfast.kernel.drivers.sqlite import SqliteDatabase

        return SqliteDatabase(sqlite_path(url), settings, ports, layers)
    try:
        from holdfast.kernel.drivers.postgres import PostgresDatabase
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise MissingExtra("postgres", "a postgresql:// database") from None
    return PostgresDatabase(url, settings, ports, layers)


def dialect_of(url: str) -> Dialect:
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise BadUrl(f"{masked(url)!r} is not a database URL; write {SCHEMES}.")
    if scheme == "sqlite":
        return "sqlite"
    if scheme in ("postgresql", "postgres"):
        return "postgres"
    raise BadUrl(f"{masked(scheme)}:// is not a database that Holdfast supports; write {SCHEMES}.")


def describe_url(url: str) -> str:
    """Where a URL points, for people: without its password."""
    if dialect_of(url) == "sqlite":
        return f"sqlite {sqlite_path(url)}"
    return f"postgresql {server_of(url)}"


def sqlite_path(url: str) -> str:
    """The file a sqlite:// URL names, or `:memory:`."""
    rest = url.partition("://")[2]
    if rest in (":memory:", "/:memory:"):
        return ":memory:"
    if not rest.startswith("/") or rest == "/":
        raise BadUrl(f"{url!r} names no file: sqlite:///relative.db or sqlite:////absolute/path.db.")
    return rest[1:]
