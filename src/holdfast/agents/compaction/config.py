"""Compaction, as it is asked for: a value with every choice there is. It does nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.errors import BadSetting
from holdfast.kernel.codec import read
from holdfast.models.facts import check

Strategy = Literal["hybrid", "summarize", "summarization", "provider"]

PROVIDER_BETA = "compact-2026-01-12"  # the version of the provider's own compaction that is spoken here
FULL = "context_window"  # the limit that a run has reached whose next call does not fit
_STRATEGIES = ("hybrid", "summarize", "provider")
_COUNTS = {"target_tokens": 1, "preserve_last": 0, "protected_tokens": 0, "summarizer_max_tokens": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """How a session's history is made smaller, and when.

    "hybrid" takes old tool outputs out first, which is free, and has the rest summarised only if that does not reach
    `target_tokens`; "summarize" summarises at once; "provider" leaves it to the provider, inside the agent's calls.
    `trigger` is the share of the model's window at which it is time. Never touched: the last `protected_tokens`, the
    last `preserve_last` messages, messages marked with `session.preserve`, earlier summaries. `window` and
    `summarizer` come from the model of the session's last run unless they are given. `count_tokens` lets the provider
    count where an estimate would not be sure enough. `automatic=False` gives an agent a way to compact, and leaves it
    to you when. "summarization" is another word for "summarize".
    """

    strategy: Strategy = "hybrid"
    trigger: float = 0.85
    target_tokens: int = 80_000
    preserve_last: int = 10
    protected_tokens: int = 40_000
    window: int | None = None
    summarizer: str | None = None
    summarizer_max_tokens: int = 4_096
    preserve_tool_outputs: bool = False
    count_tokens: bool = True
    automatic: bool = True

    def __post_init__(self) -> None:
        if self.strategy == "summarization":
            object.__setattr__(self, "strategy", "summarize")
        if self.strategy not in _STRATEGIES:
            raise BadSetting(f"Compaction(strategy=…) must be one of {', '.join(_STRATEGIES)}; got {self.strategy!r}.")
        trigger: object = self.trigger
        if isinstance(trigger, bool) or not isinstance(trigger, int | float) or not 0 < trigger <= 1:
            raise BadSetting(f"Compaction(trigger=…) is a share of the window, over 0 and at most 1: {self.trigger!r}.")
        for field, least in _COUNTS.items():
            _check_count(field, getattr(self, field), least)
        if self.window is not None:
            _check_count("window", self.window, 1)
        name: object = self.summarizer
        if name is not None and not (isinstance(name, str) and name):
            raise BadSetting(f"Compaction(summarizer=…) must be the name of a model; got {self.summarizer!r}.")
        for flag in ("preserve_tool_outputs", "count_tokens", "automatic"):
            if not isinstance(getattr(self, flag), bool):
                raise BadSetting(f"Compaction({flag}=…) must be True or False; got {getattr(self, flag)!r}.")

    def plain(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Compaction:
        """From what is stored; what this release does not know is left out."""
        return read(cls, stored, what="how sessions are to be compacted")


def provider_options(stored: Mapping[str, Any] | None, window: int) -> dict[str, Any]:
    """What a request says so that the provider compacts by itself; nothing where it is not to.

    Its summary comes back as a block of the answer, which is stored and sent again like any other, as it came.
    """
    config = Compaction.of(stored) if stored else None
    if config is None or config.strategy != "provider" or not config.automatic:
        return {}
    trigger = {"type": "input_tokens", "value": round(config.trigger * (config.window or window))}
    return {"context_management": {"edits": [{"type": "compact_20260112", "trigger": trigger}]}}


def check_compaction(agent: str, given: object) -> None:
    """`BadSetting` when this is no way to compact the sessions of an agent, `UsageError` when nobody can summarise."""
    if given is None:
        return
    if not isinstance(given, Compaction):
        raise BadSetting(f"compaction of agent {agent!r} must be Compaction(…) or None; got {given!r}.")
    if given.summarizer is not None:
        check(given.summarizer, {})


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadSetting(f"Compaction({name}=…) must be a whole number of at least {least}; got {value!r}.")
