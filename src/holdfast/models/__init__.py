"""Models: language model providers behind one protocol, and what is known of them.

`Model` is the protocol, `Batches` what a model may offer beside it, `ReplyFold` makes a `Reply` of stream events,
`ModelFailure` is everything that can go wrong. Importing this imports no provider's SDK.
"""

from __future__ import annotations

from holdfast.models.batches import Batches, BatchItem, BatchLine, BatchStatus
from holdfast.models.facts import Facts, check, facts_for
from holdfast.models.failures import ModelFailure
from holdfast.models.fold import Delta, InputPiece, Reply, ReplyFold, TextPiece, ThinkingPiece
from holdfast.models.prices import Price, cost
from holdfast.models.prompt_cache import with_breakpoints
from holdfast.models.protocol import Model, Request, ResponseHead
from holdfast.models.registry import open_model
from holdfast.models.script import Script, block, call, calls, ends, refuse, reject, say, think, truncate
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import MemoryShelf

__all__ = [
    "BatchItem",
    "BatchLine",
    "BatchStatus",
    "Batches",
    "Delta",
    "Facts",
    "InputPiece",
    "MemoryShelf",
    "Model",
    "ModelFailure",
    "Price",
    "Reply",
    "ReplyFold",
    "Request",
    "ResponseHead",
    "Script",
    "ScriptedModel",
    "TextPiece",
    "ThinkingPiece",
    "block",
    "call",
    "calls",
    "check",
    "cost",
    "ends",
    "facts_for",
    "open_model",
    "refuse",
    "reject",
    "say",
    "think",
    "truncate",
    "with_breakpoints",
]
