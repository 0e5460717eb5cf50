"""Options of a run: how one is enqueued, beside its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast import validation
from holdfast.agents.api.session import OwnRunOptions, SendOptions, Session, check_during
from holdfast.agents.definition import Limits
from holdfast.agents.runs.inbox import During, check_lent
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.models.facts import check
from holdfast.models.protocol import SET_BY_HOLDFAST

_MOST_FALLBACKS = 100


class ManyRunOptions(OwnRunOptions, total=False):
    """The options of `agent.enqueue_many`, beside `key`."""

    tenant: str | None


class TenantRunOptions(OwnRunOptions, total=False):
    """The options of `hf.tenant(id).enqueue`.

    `during` is for a message that comes while another run of the session is under way; None is as the session says.
    """

    session: str | Session | None
    key: str | None
    during: During | None


class RunOptions(SendOptions, TenantRunOptions, total=False):
    """How one run is enqueued, beside its prompt."""


RUN_DEFAULTS = RunOptions(
    session=None,
    key=None,
    variables=None,
    metadata=None,
    tenant=None,
    priority=None,
    delay=None,
    at=None,
    limits=None,
    model=None,
    mode=None,
    answer_within=None,
    during=None,
    require_worker=False,
    notify=True,
    tx=None,
)


def chosen(options: RunOptions | ManyRunOptions) -> RunOptions:
    """The options with all that were left out; `UsageError` names one that is wrong."""
    unknown = sorted(options.keys() - RUN_DEFAULTS.keys())
    if unknown:
        known = ", ".join(sorted(RUN_DEFAULTS))
        raise UsageError(f"{unknown[0]!r} is not an option of a run; there are {known}.")
    made: RunOptions = {**RUN_DEFAULTS, **options}
    check_during(made["during"])
    if made["tx"] is not None:
        check_lent(made["during"])
    validation.instance(made["limits"], "limits", Limits)
    validation.mapping(made["variables"], "variables")
    validation.mapping(made["metadata"], "metadata")
    if made["priority"] is not None:
        validation.whole(made["priority"], "priority")
    if made["tenant"] is not None:
        codec.check_tenant(made["tenant"])
    if made["key"] is not None:
        made["key"] = codec.stored_key(made["key"])
    return made


def check_model(model: object, options: Mapping[str, Any]) -> None:
    """`UsageError` when this is not a model's name, or it does not take these options. A script takes anything."""
    if not isinstance(model, str):
        raise UsageError(f"model must be the name of a model; got {type(model).__name__}.")
    if not model.strip():
        raise UsageError("model must be the name of a model, but it is empty.")
    codec.check_text(model, what="the name of a model")
    if not model.startswith("scripted:"):
        check(model, options)


def check_models(model: object, fallbacks: Sequence[str], options: Mapping[str, Any], max_tokens: int) -> None:
    """`UsageError` when one of these is not a model, does not take the options, or is named twice.

    `max_tokens` is for the model itself: a fallback that writes less is asked for as much as it writes.
    """
    if isinstance(fallbacks, str):
        raise UsageError(f"fallbacks is a list of models: fallbacks=[{fallbacks!r}].")
    if taken := sorted(SET_BY_HOLDFAST & options.keys()):
        raise UsageError(f"options cannot have {taken[0]!r}: Holdfast itself says that in each request.")
    if len(fallbacks) > _MOST_FALLBACKS:
        raise UsageError(f"an agent has at most {_MOST_FALLBACKS} fallbacks, not {len(fallbacks):,}.")
    check_model(model, {**options, "max_tokens": max_tokens})
    for each in fallbacks:
        check_model(each, options)
    if twice := validation.repeated([str(model), *fallbacks]):
        raise UsageError(f"model {twice[0]!r} is named twice: a fallback must be another model.")


def microseconds(moment: object) -> int:
    return moment_us(moment, "at")


def moment_us(moment: object, what: str) -> int:
    """A time that a caller gives, as the store has it."""
    if not isinstance(moment, datetime):
        raise UsageError(validation.expected(f"{what}=", "a datetime", moment))
    if moment.tzinfo is None:
        raise UsageError(f"{what}= needs a time zone, as in datetime(…, tzinfo=UTC).")
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
