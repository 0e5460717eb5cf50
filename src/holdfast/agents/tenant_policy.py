"""What agents of a tenant may name: tools, and models.

An agent that belongs to no tenant, and one that a program declares, was written by who runs the workers: it may name
what it likes. One that a tenant has stored may name what is allowed for that tenant: what `Tenant.allow` says in this
program, else the settings `tenant_tools` and `tenant_models`, else what the agents name that every tenant may use.
It is asked where an agent is stored, and again before each turn of its runs: an agent may have been stored before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from typing import NamedTuple

from holdfast.agents.definition import AgentSpec
from holdfast.agents.statements import AgentsSql
from holdfast.errors import NotUnderstood, UsageError
from holdfast.kernel.database import Transaction, reading
from holdfast.settings import Settings
from holdfast.validation import listed

MOST_SHARED = 1_000  # agents of no tenant, the newest, whose tools and models every tenant may use

_AS_TOOLS = frozenset(  # options of a request with which a model is given more than the tools of its agent
    {"tools", "functions", "mcp_servers", "container", "plugins", "web_search_options", "extra_body"}
)

Shared = Callable[[], Awaitable[Sequence[str]]]
_parse = lru_cache(maxsize=1_000)(AgentSpec.parse)


class Uses(NamedTuple):
    """The tools and models that an agent names."""

    tools: frozenset[str]
    models: frozenset[str]

    def joined(self, other: Uses) -> Uses:
        return Uses(self.tools | other.tools, self.models | other.models)


NOTHING = Uses(frozenset(), frozenset())


def named_by(spec: AgentSpec) -> Uses:
    """The tools and models of an agent, those that only the provider knows and those in its options too."""
    served = {str(tool.get("type") or tool.get("name")) for tool in spec.server_tools}
    models = {spec.model, *spec.fallbacks, *models_in(spec.options), *models_in(spec.compaction or {})}
    tools = {tool.name for tool in spec.tools} | served | (_AS_TOOLS & spec.options.keys())
    return Uses(frozenset(tools), frozenset(models))


def models_in(given: object) -> set[str]:
    """The models that options of a request or of a compaction name."""
    fields = given if isinstance(given, dict) else {}
    several = fields.get("models")
    found = [fields.get("model"), fields.get("summarizer"), *(several if isinstance(several, list) else [several])]
    return {str(each) for each in found if each}


@reading
async def shared_definitions(tx: Transaction) -> Sequence[str]:
    """The agents that belong to no tenant, as they are now."""
    return [row.definition for row in await tx.many(AgentsSql.shared_definitions, limit=MOST_SHARED)]


class TenantPolicy:
    """The policy of one app for all tenants."""

    def __init__(
        self, settings: Callable[[], Settings], declared: Callable[[], Iterable[tuple[str, AgentSpec]]]
    ) -> None:
        """`declared`: the agents of this program, each with its tenant."""
        self._settings = settings
        self._declared = declared
        self._tools: dict[str, tuple[str, ...]] = {}
        self._models: dict[str, tuple[str, ...]] = {}

    def allow(self, tenant: str, tools: Iterable[str] | None, models: Iterable[str] | None) -> None:
        """Let agents of a tenant name these; None leaves what was said before."""
        for what, given, kept in (("tools", tools, self._tools), ("models", models, self._models)):
            if given is not None:
                kept[tenant] = listed(given, f"{what} of tenant {tenant}", str, "names, as in ['a', 'b']")

    async def refusal(self, tenant: str, asked: Uses, shared: Shared) -> str | None:
        """Why a tenant may not name all of these, as a sentence, or None.

        `shared` reads the agents of no tenant. It is called only if what is missing may be there.
        """
        own = _all_of(spec for whose, spec in self._declared() if whose == tenant)
        common: Uses | None = None
        for what, said, setting in (
            ("tools", self._tools.get(tenant), self._settings().tenant_tools),
            ("models", self._models.get(tenant), self._settings().tenant_models),
        ):
            allowed = said if said is not None else _names(setting)
            left = {name for name in getattr(asked, what) - getattr(own, what) if not _matches(name, allowed or ())}
            if left and allowed is None:
                if common is None:
                    common = _all_of([spec for whose, spec in self._declared() if not whose])
                    common = common.joined(_all_of(_readable(await shared())))
                left -= getattr(common, what)
            if left:
                return (
                    f"tenant {tenant} may not use {what[:-1]} {min(left)!r}: no agent that every tenant may use "
                    f"names it, and neither the setting tenant_{what} nor hf.tenant(…).allow allows it."
                )
        return None

    async def check(self, tenant: str | None, asked: Uses, shared: Shared) -> None:
        """`UsageError` when a tenant may not name all of these. Without a tenant everything may be named."""
        if tenant and (why := await self.refusal(tenant, asked, shared)) is not None:
            raise UsageError(why)


def _names(setting: str) -> tuple[str, ...] | None:
    return tuple(each.strip() for each in setting.split(",") if each.strip()) or None


def _matches(name: str, allowed: Collection[str]) -> bool:
    """Whether one of these is the name, or its beginning with a star after it."""
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in allowed)


def _all_of(specs: Iterable[AgentSpec]) -> Uses:
    return reduce(lambda found, spec: found.joined(named_by(spec)), specs, NOTHING)


def _readable(definitions: Iterable[str]) -> Iterator[AgentSpec]:
    for each in definitions:
        with suppress(NotUnderstood):  # a newer release wrote it: what it names is not known here
            yield _parse(each)
