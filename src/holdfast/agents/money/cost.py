"""Cost: what the provider says was used, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.agents.content import estimate
from holdfast.agents.definition import Mode
from holdfast.agents.rows import LoadedRun, WindowBlock
from holdfast.kernel import codec
from holdfast.kernel.ids import derived_id
from holdfast.models.facts import facts_for
from holdfast.models.prices import Tier
from holdfast.models.prompt_cache import lasts_an_hour
from holdfast.models.protocol import Request


class CountedUsage(Protocol):
    """A turn as it is stored."""

    @property
    def usage(self) -> str | None: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...


def stored_usage(turn: CountedUsage) -> dict[str, Any]:
    """What the provider said was used; where its own words have been pruned, what was counted of them."""
    stored: dict[str, Any] | None = codec.decode(turn.usage)
    return stored or {
        "input_tokens": turn.input_tokens,
        "output_tokens": turn.output_tokens,
        "cache_creation_input_tokens": turn.cache_write_tokens,
        "cache_read_input_tokens": turn.cache_read_tokens,
    }


class Spent(NamedTuple):
    """What one answer used and cost."""

    usage: str
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int

    def counters(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cost_nano": self.cost_nano,
        }


class PricedUsage(Protocol):
    def cost_nano(self, model: str, usage: dict[str, Any], tier: Tier = "standard") -> int: ...


def spent_on(book: PricedUsage, model: str, usage: dict[str, Any], tier: Tier = "standard") -> Spent:
    return Spent(
        usage=codec.encode(usage, what="the usage", cap=1 << 20),
        input_tokens=int(usage.get("input_tokens") or 0),
        output_tokens=int(usage.get("output_tokens") or 0),
        cache_write_tokens=int(usage.get("cache_creation_input_tokens") or 0),
        cache_read_tokens=int(usage.get("cache_read_input_tokens") or 0),
        cost_nano=book.cost_nano(model, usage, tier),
    )


# A reservation: the most that a call may use, before anybody knows what it will.
#
# Text is estimated. What the provider fetches itself, by URL or file id, may be as large as the provider takes: a
# document up to the whole window, an image up to the size to which images are shrunk. Once an answer has come, what
# was
# sent before it has been counted.


_REMOTE = ("url", "file")
_IMAGE = 5_000  # tokens of the largest picture that a model of today looks at
_DOUBT = 2  # times an estimate, where it is added to what was counted


class Pricing(Protocol):
    def most_nano(self, model: str, input_tokens: int, max_tokens: int, tier: Tier = "standard", **how: Any) -> int: ...


def most_nano(  # noqa: PLR0917  what a call follows from
    book: Pricing,
    request: Request,
    mode: Mode,
    run: LoadedRun,
    window: Sequence[WindowBlock],
    unsaid: Sequence[Mapping[str, Any]],
) -> int:
    """The most that a call of a run may cost. `unsaid`: what it says that is not stored yet."""
    body = request.body()
    parts = [body.get("system") or [], body.get("tools") or [], body["messages"]]
    tokens = most_tokens(parts, facts_for(request.model).window)
    if _has_documents(parts) and (counted := _counted(run, window, unsaid)) is not None:
        tokens = min(tokens, counted)
    tier: Tier = "batch" if mode == "batch" else "standard"
    return book.most_nano(request.model, tokens, request.max_tokens, tier, **_how(request, tokens))


def most_tokens(parts: Any, window: int) -> int:
    """How many tokens these may be at most, in a window of that size: more than it holds is refused, not paid for."""
    tokens = estimate(parts)
    for kind in _fetched(parts):
        tokens += _IMAGE if kind == "image" else window
    return min(tokens, max(window, estimate(parts)))


def _counted(run: LoadedRun, window: Sequence[WindowBlock], unsaid: Sequence[Mapping[str, Any]]) -> int | None:
    """By what the provider counted last, if everything that it fetches was sent by then."""
    if run.reported is None:
        return None
    last = derived_id(run.id, "answer", run.turns)
    at = max((number for number, row in enumerate(window) if row.message == last), default=-1)
    since = [*(codec.decode(row.body) for row in window[at + 1 :]), *unsaid]
    if at < 0 or _has_documents(since):
        return None
    return run.reported + _DOUBT * estimate(since) + sum(_IMAGE for _ in _fetched(since))


def _has_documents(parts: Any) -> bool:
    return any(kind != "image" for kind in _fetched(parts))


def _fetched(value: Any) -> Iterator[str]:
    """The type of every block whose content the provider gets from elsewhere."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _fetched(each)
    elif isinstance(value, Mapping):
        source = value.get("source")
        if isinstance(source, Mapping) and source.get("type") in _REMOTE:
            yield str(value.get("type"))
        yield from _fetched(value.get("content"))


def _how(request: Request, tokens: int) -> dict[str, Any]:
    """What a usage would say of how it was served."""
    how = {key: request.options[key] for key in ("speed", "inference_geo") if request.options.get(key)}
    if lasts_an_hour(request):
        how["cache_creation"] = {"ephemeral_1h_input_tokens": tokens}
    return how
