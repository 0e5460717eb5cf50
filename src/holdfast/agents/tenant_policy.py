"""What agents of a tenant may name: tools, models, and options of a request.

An agent that belongs to no tenant, and one that a program declares, was written by who runs the workers: it may name
what it likes. One that a tenant has stored may name what is allowed for that tenant: what `Tenant.allow` says in this
program, else the settings `tenant_tools` and `tenant_models`, else what the agents name that every tenant may use.
Options that say how a model answers are free. Any other needs an agent of the program with the same value.
It is asked where an agent is stored, and again before each turn of its runs: an agent may have been stored before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

from holdfast.agents.definition import AgentSpec
from holdfast.agents.statements import AgentsSql
from holdfast.clock import Ports
from holdfast.errors import NotUnderstood, UsageError
from holdfast.kernel.database import Transaction, reading
from holdfast.models.protocol import canonical
from holdfast.settings import Settings
from holdfast.validation import listed

MOST_SHARED = 1_000  # agents of no tenant, the newest, whose tools and models every tenant may use
_REMEMBERED = 5.0  # seconds for which a process trusts what it has read of them

_FREE = frozenset(  # options of a request that say how a model answers, and nothing of who is asked and what is paid
    {
        *("temperature", "top_p", "top_k", "seed", "stop", "stop_sequences", "tool_choice"),
        *("thinking", "effort", "reasoning_effort", "output_config"),
    }
)
_FREE_METADATA = frozenset({"user_id"})  # for whom the provider is asked

Transact = Callable[..., Awaitable[Any]]
Place = tuple[str, int]


class Uses(NamedTuple):
    """The tools and models that an agent names, and its options that are not free, each as `name=` and JSON."""

    tools: frozenset[str]
    models: frozenset[str]
    options: frozenset[str]

    def joined(self, other: Uses) -> Uses:
        return Uses(*(mine | others for mine, others in zip(self, other, strict=True)))

    def without(self, other: Uses) -> Uses:
        return Uses(*(mine - others for mine, others in zip(self, other, strict=True)))


class TenantRules(NamedTuple):
    """The names that one tenant is allowed, by kind as in `Uses`; None: those of the agents that all may use."""

    tools: tuple[str, ...] | None
    models: tuple[str, ...] | None
    options: None = None


NOTHING = Uses(frozenset(), frozenset(), frozenset())


def named_by(spec: AgentSpec) -> Uses:
    """What an agent names: tools that only the provider knows, and models in its options too."""
    served = {str(tool.get("type") or tool.get("name")) for tool in spec.server_tools}
    models = {spec.model, *spec.fallbacks, *models_in(spec.options), *models_in(spec.compaction or {})}
    tools = {tool.name for tool in spec.tools} | served
    options = {f"{name}={canonical(value)}" for name, value in spec.options.items() if not _is_free(name, value)}
    return Uses(frozenset(tools), frozenset(models), frozenset(options))


def _is_free(option: str, value: object) -> bool:
    if option == "metadata":
        return isinstance(value, dict) and value.keys() <= _FREE_METADATA
    return option in _FREE


def models_in(given: object) -> set[str]:
    """The models that options of a request or of a compaction name."""
    fields = given if isinstance(given, dict) else {}
    several = fields.get("models")
    found = [fields.get("model"), fields.get("summarizer"), *(several if isinstance(several, list) else [several])]
    return {str(each) for each in found if each}


class SharedUses(NamedTuple):
    """What the stored agents of no tenant name: each of their versions, and all of them; and when that was read."""

    each: Mapping[Place, Uses]
    all: Uses
    at: float


@reading
async def shared_uses(tx: Transaction, known: Mapping[Place, Uses]) -> dict[Place, Uses]:
    """What each of the agents that belong to no tenant names now. Versions never change: `known` ones are not read."""
    places = [(row.agent, row.version) for row in await tx.many(AgentsSql.shared_versions, limit=MOST_SHARED)]
    found = {place: known[place] for place in places if place in known}
    if absent := [agent for agent, version in places if (agent, version) not in known]:
        rows = await tx.many(AgentsSql.shared_definitions, agents=absent)
        found |= {(row.agent, row.version): _uses_in(row.definition) for row in rows}
    return found


def _uses_in(definition: str) -> Uses:
    try:
        return named_by(AgentSpec.parse(definition))
    except NotUnderstood:  # a newer release wrote it: what it names is not known here
        return NOTHING


class TenantPolicy:
    """The policy of one app for all tenants."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        declared: Callable[[], Iterable[tuple[str, AgentSpec]]],
        ports: Callable[[], Ports],
    ) -> None:
        """`declared`: the agents of this program, each with its tenant."""
        self._settings = settings
        self._declared = declared
        self._ports = ports
        self._tools: dict[str, tuple[str, ...]] = {}
        self._models: dict[str, tuple[str, ...]] = {}
        self._stored: SharedUses | None = None

    def allow(self, tenant: str, tools: Iterable[str] | None, models: Iterable[str] | None) -> None:
        """Let agents of a tenant name these; None leaves what was said before."""
        for what, given, kept in (("tools", tools, self._tools), ("models", models, self._models)):
            if given is not None:
                kept[tenant] = listed(given, f"{what} of tenant {tenant}", str, "names, as in ['a', 'b']")

    async def refusal(self, tenant: str, asked: Uses, transact: Transact) -> str | None:
        """Why a tenant may not name all of these, as a sentence, or None.

        The stored agents of no tenant are read only if what is missing may be there. Who is allowed something by what
        was read a moment ago is not refused for it: nothing is refused before they are read again.
        """
        rules = self._rules(tenant)
        left = self._undeclared(tenant, asked, rules)
        before = self._stored
        if before is not None and self._ports().clock.monotonic() - before.at < _REMEMBERED:
            left = _lent(left, before.all, rules)
        if _may_be_lent(left, rules):
            left = _lent(left, (await self._read(transact)).all, rules)
        for what, names in left._asdict().items():
            if names:
                return _refusal(tenant, what, min(names))
        return None

    async def check(self, tenant: str | None, asked: Uses, transact: Transact) -> None:
        """`UsageError` when a tenant may not name all of these. Without a tenant everything may be named."""
        if tenant and (why := await self.refusal(tenant, asked, transact)) is not None:
            raise UsageError(why)

    def _rules(self, tenant: str) -> TenantRules:
        settings = self._settings()
        tools, models = self._tools.get(tenant), self._models.get(tenant)
        return TenantRules(
            _names(settings.tenant_tools) if tools is None else tools,
            _names(settings.tenant_models) if models is None else models,
        )

    def _undeclared(self, tenant: str, asked: Uses, rules: TenantRules) -> Uses:
        """What of these neither the rules nor the agents of this program let the tenant name."""
        declared = list(self._declared())
        left = asked.without(_all_of(spec for whose, spec in declared if whose == tenant))
        left = Uses(
            *(
                frozenset(name for name in each if not _matches(name, rule or ()))
                for each, rule in zip(left, rules, strict=True)
            )
        )
        return _lent(left, _all_of(spec for whose, spec in declared if not whose), rules)

    async def _read(self, transact: Transact) -> SharedUses:
        known = {} if self._stored is None else self._stored.each
        each: dict[Place, Uses] = await transact(shared_uses, known)
        self._stored = SharedUses(each, _joined(each.values()), self._ports().clock.monotonic())
        return self._stored


def _refusal(tenant: str, what: str, name: str) -> str:
    if what == "options":
        return (
            f"tenant {tenant} may not use option {name.partition('=')[0]!r}: it may use {', '.join(sorted(_FREE))} and "
            "metadata with a user_id, and what an agent that every tenant may use has with the same value."
        )
    return (
        f"tenant {tenant} may not use {what[:-1]} {name!r}: no agent that every tenant may use names it, and neither "
        f"the setting tenant_{what} nor hf.tenant(…).allow allows it."
    )


def _may_be_lent(left: Uses, rules: TenantRules) -> bool:
    return any(names and rule is None for names, rule in zip(left, rules, strict=True))


def _lent(left: Uses, shared: Uses, rules: TenantRules) -> Uses:
    """What is left when a tenant may use what shared agents name, where no rule says what else it may."""
    return left.without(
        Uses(*(names if rule is None else frozenset() for names, rule in zip(shared, rules, strict=True)))
    )


def _names(setting: str) -> tuple[str, ...] | None:
    return tuple(each.strip() for each in setting.split(",") if each.strip()) or None


def _matches(name: str, allowed: Collection[str]) -> bool:
    """Whether one of these is the name, or its beginning with a star after it."""
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in allowed)


def _all_of(specs: Iterable[AgentSpec]) -> Uses:
    return _joined(map(named_by, specs))


def _joined(uses: Iterable[Uses]) -> Uses:
    return reduce(Uses.joined, uses, NOTHING)
