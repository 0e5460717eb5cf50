"""Backends from a machine's `settings.backends`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from holdfast.errors import BadSetting, UsageError
from holdfast.facades.flatagents.records import HEARTBEAT_INTERVAL, RegistrationBackend, WorkBackend
from holdfast.facades.flatagents.redis_backends import DEFAULT_URL, RedisRegistrationBackend, RedisWorkBackend
from holdfast.facades.flatagents.registration import (
    DEFAULT_PATH,
    MEMORY,
    BackendAddress,
    HoldfastRegistrationBackend,
    Store,
    sqlite_url,
)
from holdfast.facades.flatagents.work import HoldfastWorkBackend
from holdfast.validation import did_you_mean

KINDS = ("sqlite", "memory", "postgres", "redis")


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Where the registry and the pools are. A path is a file, or the URL of a server; one path serves both."""

    registration: str = "sqlite"
    work: str = "sqlite"
    registration_path: str | None = None
    work_path: str | None = None
    sqlite_path: str | None = None
    heartbeat_interval: float = HEARTBEAT_INTERVAL

    def url(self, kind: str, path: str | None) -> str:
        """The Holdfast URL of one of the two."""
        if kind not in KINDS:
            raise BadSetting(
                f"a backend must be one of {', '.join(KINDS)}; got {kind!r}.{did_you_mean(str(kind), KINDS)}"
            )
        if kind == "memory":
            return MEMORY
        given = path or self.registration_path or self.work_path or self.sqlite_path
        if kind == "redis":
            return given if given is not None and "://" in given else DEFAULT_URL
        if kind == "postgres" and (given is None or "://" not in given):
            raise BadSetting("a postgres backend needs the URL of its database as registration_path or work_path.")
        return sqlite_url(given or DEFAULT_PATH)

    def absolute(self) -> dict[str, Any]:
        """For a process that may be started elsewhere; `UsageError` for backends that no other process can reach."""
        if "memory" in (self.registration, self.work):
            raise UsageError("backends in memory are in one process, so nothing can be launched with them.")
        paths = {
            "registration_path": self.url(self.registration, self.registration_path or self.sqlite_path),
            "work_path": self.url(self.work, self.work_path or self.sqlite_path),
        }
        return {**asdict(self), **paths}


class Backends(NamedTuple):
    """A registry and the pools beside it."""

    registration: RegistrationBackend
    work: WorkBackend


def create_backends(config: BackendConfig | Mapping[str, Any] | None = None) -> Backends:
    """Make both backends. Where they are in one place they share one store."""
    wanted = config if isinstance(config, BackendConfig) else config_of(config or {})
    here = wanted.url(wanted.registration, wanted.registration_path or wanted.sqlite_path)
    there = wanted.url(wanted.work, wanted.work_path or wanted.sqlite_path)
    interval = wanted.heartbeat_interval
    if wanted.registration == "redis":
        redis = RedisRegistrationBackend(here, heartbeat_interval=interval)
        return Backends(redis, _work(wanted.work, there, None))
    store = Store(here)
    registration = HoldfastRegistrationBackend(store, heartbeat_interval=interval)
    return Backends(registration, _work(wanted.work, there, store if here == there else None))


def config_from(backends: Backends) -> BackendConfig | None:
    """The configuration that makes these again in another process; None: a class of yours is among them."""
    registration, work = (_where(each) for each in backends)
    if registration is None or work is None:
        return None
    interval = float(getattr(backends.registration, "heartbeat_interval", HEARTBEAT_INTERVAL))
    return BackendConfig(
        registration.kind,
        work.kind,
        registration_path=registration.url,
        work_path=work.url,
        heartbeat_interval=interval,
    )


def _where(backend: object) -> BackendAddress | None:
    """Where one of ours is. A class that derives from ours may do more than another process would know of."""
    ours = type(backend).__module__.startswith(f"{__package__}.")
    return getattr(backend, "address", None) if ours else None


def _work(kind: str, url: str, shared: Store | None) -> WorkBackend:
    return RedisWorkBackend(url) if kind == "redis" else HoldfastWorkBackend(shared or Store(url))


def config_of(settings: Mapping[str, Any]) -> BackendConfig:
    """From `settings.backends` of a machine, or from `settings` themselves; other keys belong to others."""
    chosen = settings.get("backends", settings)
    if not isinstance(chosen, Mapping):
        raise BadSetting(f"backends must be a mapping; got {chosen!r:.80}.")
    known = {field.name for field in fields(BackendConfig)}
    own = {name: value for name, value in {**settings, **chosen}.items() if name in known and value is not None}
    return BackendConfig(**own)
