"""History: stored messages as the provider is sent them. Pure.

What was sent before is sent again byte for byte, so that signed thinking stays valid and caches hit. Messages are
stored as they came; joining neighbours of one role is done here, the same way every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import Any, NamedTuple

from holdfast.agents.compaction.config import PROVIDER_BETA, provider_options
from holdfast.agents.content import expired, expired_in, present
from holdfast.agents.definition import AgentSpec
from holdfast.agents.rows import CallRow, WindowBlock
from holdfast.agents.states import CallState
from holdfast.kernel import codec
from holdfast.kernel.ids import derived_id
from holdfast.models import Request
from holdfast.models.facts import facts_for
from holdfast.models.prompt_cache import with_breakpoints
from holdfast.models.protocol import canonical
from holdfast.models.request_view import CONTINUE, CORRECT
from holdfast.models.schemas import accepted

THINKING = frozenset({"thinking", "redacted_thinking"})
CLIENT_USE = "tool_use"
SERVER_USE = "server_tool_use"
_LOST = "The worker died while this call ran. Whether it took effect is not known, and it was not run again."
_ENDED = "The run ended before this call did; it was not answered."


class SentMessage(NamedTuple):
    role: str
    blocks: list[dict[str, Any]]


def messages(
    window: Sequence[WindowBlock], fingerprint: str, now: int = 0, prompt: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """What is sent for these blocks, and what is said now. Thinking made under another fingerprint is left out: it
    would be refused.

    `now` says which files have expired.
    """
    sent: list[SentMessage] = []
    for _, rows in groupby(window, key=lambda row: row.ordinal):
        blocks = list(rows)
        read = [codec.decode(row.body) for row in blocks if not _is_stale(row, fingerprint)]
        kept = _sendable([present(block, now) for block in read])
        if kept:
            sent.append(SentMessage(blocks[0].role, kept))
    if prompt:
        sent.append(SentMessage("user", [present(block, now) for block in prompt]))
    return [{"role": message.role, "content": message.blocks} for message in _answered(merged(sent))]


def _is_stale(row: WindowBlock, fingerprint: str) -> bool:
    """Thinking of another request than this one would be refused."""
    return row.type in THINKING and row.kind == "answer" and row.fingerprint not in ("", fingerprint)


def loop_lost_thinking(window: Sequence[WindowBlock], fingerprint: str) -> bool:
    """Whether the window ends inside a tool loop of which thinking is left out."""
    if not window or window[-1].role != "user":
        return False
    for role, rows in groupby(reversed(window), key=lambda row: row.role):
        said = list(rows)
        if role == "user" and not any(row.type == "tool_result" for row in said):
            return False
        if any(_is_stale(row, fingerprint) for row in said):
            return True
    return False


def _sendable(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what models write and providers refuse to read: blank text, thinking that was cut off or ends a turn."""
    kept = [block for block in blocks if not _is_blank(block)]
    while kept and kept[-1].get("type") in THINKING:
        kept.pop()
    return kept


def _answered(sent: list[SentMessage]) -> list[SentMessage]:
    """Without uses of the provider's own tools that nobody will answer any more.

    One may stay open only while nothing but results of tools follows it; a run that ended before the answer came leaves
    one behind.
    """
    known = {block.get("tool_use_id") for message in sent for block in message.blocks}
    kept: list[SentMessage] = []
    spoken = False  # whether something else than results follows
    for message in reversed(sent):
        if message.role == "user":
            spoken = spoken or any(block.get("type") != "tool_result" for block in message.blocks)
            kept.append(message)
            continue
        blocks = [block for block in message.blocks if not (spoken and _is_open(block, known))]
        kept.append(message if len(blocks) == len(message.blocks) else SentMessage(message.role, _sendable(blocks)))
        spoken = True
    kept.reverse()
    return kept if all(message.blocks for message in kept) else merged(each for each in kept if each.blocks)


def _is_open(block: dict[str, Any], answered: Set[Any]) -> bool:
    return block.get("type") == SERVER_USE and block.get("id") not in answered


def _is_blank(block: dict[str, Any]) -> bool:
    match block.get("type"):
        case "text":
            return not str(block.get("text") or "").strip()
        case "thinking":
            return not block.get("signature")
        case _:
            return False


def merged(sent: Iterable[SentMessage]) -> list[SentMessage]:
    """Neighbours of one role as one message; results of tools come first in theirs, as the provider asks."""
    joined: list[SentMessage] = []
    for message in sent:
        if joined and joined[-1].role == message.role:
            joined[-1] = SentMessage(message.role, [*joined[-1].blocks, *message.blocks])
        else:
            joined.append(message)
    return [
        SentMessage(role, _results_first(blocks)) if role == "user" else SentMessage(role, blocks)
        for role, blocks in joined
    ]


def _results_first(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if not results:
        return blocks
    return results + [block for block in blocks if block.get("type") != "tool_result"]


def uses(blocks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls that the client must answer; a server's own are not among them."""
    return [block for block in blocks if block.get("type") == CLIENT_USE]


def server_tool_is_open(window: Sequence[WindowBlock]) -> bool:
    """Whether the last answer waits for a tool of the provider's own: then nothing may be said but results."""
    last = next((row.message for row in reversed(window) if row.role == "assistant"), None)
    blocks = [codec.decode(row.body) for row in window if row.message == last]
    answered = {block.get("tool_use_id") for block in blocks}
    return any(_is_open(block, answered) for block in blocks)


def result_block(call: CallRow) -> dict[str, Any]:
    """The result of a call that the model reads."""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.tool_use_id}
    content = _content(call)
    if (changed := _changed(call)) is not None:
        content = [{"type": "text", "text": changed}, *_as_blocks(content)]
    if content:
        block["content"] = content
    if call.is_error:
        block["is_error"] = True
    return block


def _changed(call: CallRow) -> str | None:
    """What a person changed before the call ran: the model's own block stays as it wrote it."""
    decision = codec.decode(call.decision) or {}
    if decision.get("input") is None:
        return None
    given = codec.encode(decision["input"], what="arguments", cap=1 << 26)
    return f"A person changed the arguments before this call ran. It ran with: {given}"


def _as_blocks(content: Any) -> list[dict[str, Any]]:
    if not content:
        return []
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]


def _content(call: CallRow) -> Any:
    output = codec.decode(call.output)
    if call.state == CallState.COMPLETED:
        return output
    if isinstance(output, dict):
        if output.get("type") == "rescue_failed":
            return _LOST
        return str(output.get("message") or output.get("type") or _ENDED)
    return output or _ENDED


def answers(blocks: Iterable[dict[str, Any]], calls: Mapping[str, CallRow]) -> list[dict[str, Any]]:
    """Results for the calls of a run that is over: what those that ended said, an error for the others."""
    return [
        result_block(calls[use["id"]])
        if use["id"] in calls
        else {"type": "tool_result", "tool_use_id": use["id"], "content": _ENDED, "is_error": True}
        for use in uses(blocks)
    ]


def said_before(window: Sequence[WindowBlock], run: str, number: int) -> str:
    """The text of the answers of a run that were cut off and continued, up to the one that turn `number` continues
    with."""
    texts: list[str] = []
    words = {row.message: codec.decode(row.body).get("text") for row in window if row.kind == "continuation"}
    for turn in range(number - 1, 0, -1):
        if words.get(derived_id(run, "continuation", turn)) != CONTINUE:
            break
        answer = derived_id(run, "answer", turn)
        texts.append(text_of(codec.decode(row.body) for row in window if row.message == answer))
    return "".join(reversed(texts))


def was_corrected(window: Sequence[WindowBlock]) -> bool:
    """Whether the last run here has been told once that its answer does not fit."""
    begins = CORRECT.partition("{")[0]
    for row in reversed(window):
        if row.kind == "prompt":
            return False
        if row.kind == "continuation" and str(codec.decode(row.body).get("text", "")).startswith(begins):
            return True
    return False


def text_of(blocks: Iterable[dict[str, Any]]) -> str:
    return "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")


# The request: what is sent to a model for one turn. Pure, and always the same: a prefix once sent never changes.


_INSISTS = "enabled"  # so asked to think, a model has to be shown what it thought in a tool loop that is open


class BuiltRequest(NamedTuple):
    request: Request
    hash: str
    fingerprint: str


class CallBounds(NamedTuple):
    """What a call is named for a witness, and how many seconds it may take, silent and in all."""

    call: str
    idle: float
    total: float


def ask(  # noqa: PLR0913  what decides a request
    spec: AgentSpec,
    model: str,
    window: Sequence[WindowBlock],
    prompt: Sequence[dict[str, Any]],
    *,
    credential: str,
    container: str | None,
    bounds: CallBounds,
    generation: str = "",
    now: int = 0,
) -> BuiltRequest:
    """The request of a turn. `prompt`: the message that is not stored yet, on the first one.

    `generation` of the history: thinking is bound to the words before it, and another generation has other words.
    So has a history of which a file has expired by `now`.
    """
    facts = facts_for(model)
    system = [{"type": "text", "text": spec.instructions}] if spec.instructions else []
    tools = spec.wire_tools(strict=facts.strict_tools)
    gone = sorted({*expired_in([row.body for row in window], now), *expired(prompt, now)})
    identity = [system, tools, model, credential, spec.output, *filter(None, (generation, gone))]
    fingerprint = codec.digest(canonical(identity))[:32]
    sent = messages(window, fingerprint, now, prompt)
    managed = provider_options(spec.compaction, facts.window)
    options = {**managed, **spec.options}
    if (options.get("thinking") or {}).get("type") == _INSISTS and loop_lost_thinking(window, fingerprint):
        options["thinking"] = {"type": "disabled"}  # until the loop is closed
    if container is not None:
        options["container"] = container
    request = Request(
        model=model,
        max_tokens=min(spec.max_tokens, facts.max_output),
        messages=sent,
        system=system,
        tools=tools,
        options=options,
        output_schema=None if spec.output is None else accepted(spec.output),
        betas=(PROVIDER_BETA,) if managed else (),
        call=bounds.call,
        idle=bounds.idle,
        total=bounds.total,
    )
    hashed = codec.digest(canonical(request.body()))  # as `request_hash` does, where there are no markers yet
    marked = with_breakpoints(request, hour=spec.caching == "1h") if spec.caching else request
    return BuiltRequest(marked, hashed, fingerprint)
