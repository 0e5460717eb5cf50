"""Content that a provider refuses: a picture that it cannot read, a PDF with too many pages, a file that is gone.

What was said is sent again with every turn, so what is refused once is refused for ever. Results of tools are replaced
by an error (`refused_results`). Whatever else no answer has followed is retired when its run fails for it: it is kept,
and the session continues from what was accepted last.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.agents.attachments import carries_media, is_more_than_text
from holdfast.agents.events.log import Changes
from holdfast.agents.messages import encode_block
from holdfast.agents.rows import BlockRow
from holdfast.agents.runs.history import result_block
from holdfast.agents.statements import CallsSql, ContentSql, MessagesSql, SessionsSql
from holdfast.agents.token_estimate import estimate
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.reasons import ACCOUNT_REFUSED

REFUSED = "The provider refused this content: "
# the types of error of runs whose model could not be asked
ASKING_FAILED = ("streaming_error", "context_window", ACCOUNT_REFUSED)
_LONGEST = 500
_CAP = 1 << 20
_LONG = 100_000  # tokens: text like that fills half of the smallest window, and is not an old history's fault alone
_STAYS = "results"  # each answers a call: it can be replaced, not taken away
# As streams fail, and as requests of a batch do.
_INVALID = ("bad_request", "invalid_request_error")
_TOO_LARGE = ("context_window", "request_too_large")
_NOT_THERE = ("not_found", "not_found_error")
CONTENT_KINDS = frozenset((*_INVALID, *_TOO_LARGE, *_NOT_THERE))
_FILE = re.compile(r"\bfile_\w+|[Ff]ile not found")
# A refusal that names another part of the request is about the agent: other content would be refused as well.
_OTHER_PART = re.compile(
    r"""^[`"']?(?:tools|system|tool_choice|thinking|output_config|output_format|max_tokens|model|stop_sequences|betas"""
    r"""|temperature|top_p|top_k|metadata|container|context_management|mcp_servers|service_tier|speed)\b"""
)


class ContentRefusal(NamedTuple):
    """What a provider said of a request that it did not take."""

    kind: str
    message: str

    @property
    def words(self) -> str:
        return codec.clip(self.message.removeprefix(f"{self.kind}: "), _LONGEST)

    def is_about(self, blocks: Sequence[dict[str, Any]]) -> bool:
        """Whether it may be these that were refused, of all that a request is made of."""
        if self.kind in _INVALID:
            return _OTHER_PART.match(self.words) is None
        if self.kind in _TOO_LARGE:
            return any(map(carries_media, blocks)) or estimate(list(blocks)) > _LONG
        return self.kind in _NOT_THERE and _FILE.search(self.words) is not None and any(map(carries_media, blocks))


class RefusedContent(Protocol):
    """As much of a run that failed as its refusal needs."""

    @property
    def id(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def turns(self) -> int: ...


async def refusal_of(tx: Transaction, run: RefusedContent) -> ContentRefusal | None:
    """Why the call was not taken that a run has failed with; None when it was for something else."""
    turn = await tx.one(ContentSql.failed_turn, run=run.id, number=run.turns + 1)
    error: dict[str, Any] = (codec.decode(turn.error) if turn is not None else None) or {}
    return ContentRefusal(str(error.get("kind", "")), str(error.get("message", ""))) if error else None


async def retire_unaccepted(
    tx: Transaction, run: RefusedContent, refusal: ContentRefusal | None, changes: Changes
) -> None:
    """Part of what ends a run as failed: take out of the conversation what may have been refused.

    That is all that was said since the last answer, by this run or one that failed before it: prompts, steers, messages
    that joined it. Results of tools stay, as errors where they are more than text.
    """
    if refusal is None or run.branch:  # what a called agent was told is sent by nobody else
        return
    said = await tx.many(ContentSql.unaccepted, session=run.session)
    blocks = await tx.many(MessagesSql.blocks_of, messages=[each.id for each in said]) if said else []
    if not refusal.is_about([codec.decode(block.body) for block in blocks]):
        return
    for each in said:
        if each.kind == _STAYS:
            own = [block for block in blocks if block.message == each.id]
            uses = [use for block in own if (use := _carrier(block)) is not None]
            await replace_results(tx, each.id, RefusedCall(each.run, each.turn), own, uses, refusal)
    gone = [each.id for each in said if each.kind != _STAYS]
    if gone:
        await tx.run(ContentSql.retire_messages, ids=gone)
        changes.tell(run.id, "messages_retired", {"messages": gone, "reason": f"refused: {refusal.words}"})


def _carrier(block: BlockRow) -> str | None:
    """The call that a result which is more than text answers."""
    body = codec.decode(block.body)
    return str(body.get("tool_use_id")) if body.get("type") == "tool_result" and is_more_than_text(body) else None


class RefusedCall(NamedTuple):
    """Whose calls, and of which turn."""

    run: str
    turn: int


async def replace_results(  # noqa: PLR0917  what is replaced, and by what
    tx: Transaction,
    message: str,
    of: RefusedCall,
    blocks: Sequence[BlockRow],
    uses: Collection[str],
    refusal: ContentRefusal,
) -> None:
    """Tell the model of these calls that their results were refused. What the tools returned stands in their jobs."""
    if not uses:
        return
    said = codec.encode(REFUSED + refusal.words, what="an answer", cap=_CAP)
    for use in uses:
        await tx.run(ContentSql.refuse_result, run=of.run, turn=of.turn, use=use, output=said)
    calls = {call.tool_use_id: call for call in await tx.many(CallsSql.calls_of, run=of.run, turn=of.turn)}
    blobs = [row.hash for row in await tx.many(ContentSql.lock_blobs_of, message=message)]
    for block in blocks:
        use = str(codec.decode(block.body).get("tool_use_id"))
        if use in uses:
            result = (
                result_block(calls[use]) if use in calls else error_block(use, refusal)
            )  # a fork has no calls of it
            await tx.run(ContentSql.rewrite_block, message=message, ordinal=block.ordinal, body=encode_block(result))
    if blobs:
        await tx.run(SessionsSql.delete_blobs, hashes=blobs)


def error_block(use: str, refusal: ContentRefusal) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use, "content": REFUSED + refusal.words, "is_error": True}


def is_replaced(block: dict[str, Any]) -> bool:
    """Whether it reports a refused result."""
    return bool(block.get("is_error")) and REFUSED in str(block.get("content"))
