"""Options of a run: how one is enqueued, beside its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypedDict

from holdfast import checking
from holdfast.agents.conversation import Session, check_during
from holdfast.agents.definitions import Limits, Mode
from holdfast.agents.inbox import During, check_lent
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.models.facts import check


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How one run is enqueued, beside its prompt."""

    session: str | Session | None = None
    key: str | None = None
    variables: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    tenant: str | None = None
    priority: int | None = None
    delay: Duration | None = None
    at: datetime | None = None
    limits: Limits | None = None
    model: str | None = None
    mode: Mode | None = None  # None: by the deadline, or streaming
    deadline: Duration | None = None  # when the answer is wanted; it decides how the model is asked, and ends nothing
    during: During | None = None  # while another run of the session is under way; None: as the session says
    require_worker: bool = False
    notify: bool = True
    tx: object | None = None


class RunOptionsDict(TypedDict, total=False):
    """The same as keywords, for type checkers."""

    session: str | Session | None
    key: str | None
    variables: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    tenant: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    limits: Limits | None
    model: str | None
    mode: Mode | None
    deadline: Duration | None
    during: During | None
    require_worker: bool
    notify: bool
    tx: object | None


def chosen(options: Mapping[str, Any]) -> RunOptions:
    unknown = sorted(options.keys() - set(RunOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(sorted(RunOptions.__dataclass_fields__))
        raise UsageError(f"{unknown[0]!r} is not an option of a run; there are {known}.")
    made = RunOptions(**options)
    check_during(made.during)
    if made.tx is not None:
        check_lent(made.during)
    checking.instance(made.limits, "limits", Limits)
    checking.mapping(made.variables, "variables")
    checking.mapping(made.metadata, "metadata")
    if made.priority is not None:
        checking.whole(made.priority, "priority")
    if made.tenant is not None:
        encoding.check_tenant(made.tenant)
    return made if made.key is None else replace(made, key=encoding.stored_key(made.key))


def check_model(model: object, options: Mapping[str, Any]) -> None:
    """`UsageError` when there is no such model, or it does not take these options. A script takes anything."""
    if not isinstance(model, str):
        raise UsageError(f"model is the name of one, not {type(model).__name__}.")
    if not model.startswith("scripted:"):
        check(model, options)


def check_models(model: object, fallbacks: Sequence[str], options: Mapping[str, Any], max_tokens: int) -> None:
    """`UsageError` when one of these is no model, does not take the options, or is named twice.

    `max_tokens` is for the model itself: a fallback that writes less is asked for as much as it writes.
    """
    if isinstance(fallbacks, str):
        raise UsageError(f"fallbacks is a list of models: fallbacks=[{fallbacks!r}].")
    models = [model, *fallbacks]
    check_model(model, {**options, "max_tokens": max_tokens})
    for each in fallbacks:
        check_model(each, options)
    twice = [each for each in models if models.count(each) > 1]
    if twice:
        raise UsageError(f"model {twice[0]!r} is named twice: a fallback is another model.")


def microseconds(moment: object) -> int:
    if not isinstance(moment, datetime):
        raise UsageError(f"at= is a datetime, not {checking.shown(moment)}.")
    if moment.tzinfo is None:
        raise UsageError("at= needs a time zone: datetime(…, tzinfo=UTC).")
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
