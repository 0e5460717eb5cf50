"""Principals: who asks, and how much they may do."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

from holdfast import validation
from holdfast.errors import UsageError
from holdfast.kernel import codec

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may

Scope = Literal["api", "metrics", "scale"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
API: frozenset[str] = frozenset({"api"})


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks: a person or a program.

    `role` is "viewer", "operator" or "admin". With a `tenant`, nothing of another tenant is there for them. `scopes`
    says what of the web they reach: "api", "metrics", "scale".
    """

    name: str
    role: Role = "viewer"
    tenant: str | None = None
    scopes: frozenset[str] = field(default=API)
    token: str | None = None  # the id of the token that they showed, or that they logged in with

    def __post_init__(self) -> None:
        validation.one_of(self.role, "role", ROLES)
        if not self.name:
            raise UsageError("a principal needs a name: it is written beside everything that it changes.")
        if self.tenant is not None:
            codec.check_tenant(self.tenant)
        for scope in self.scopes:
            validation.one_of(scope, "scope", SCOPES)

    def may(self, role: Role) -> bool:
        """Whether this one may do what that role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


def os_user() -> str:
    """Who runs this process, by the name that the system has for them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return "somebody"


class WebAccess(TypedDict, total=False):
    """What `hf.web` takes: who may ask, and for what."""

    who: Callable[[Any], Principal | Awaitable[Principal | None] | None] | None
    tenant: str | None
    metadata: Mapping[str, Any] | None
    read_only: bool
    gateway: Any  # an InProcessGateway, or the name of the agent that answers
    hosts: Collection[str] | None
    columns: Collection[str]  # keys of metadata that lists show
    filters: Collection[str]  # keys of metadata that lists are narrowed by
