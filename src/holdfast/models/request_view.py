"""A request as the model sees it, in the words of a test: the last text, what tools returned, what is offered.

Pure: everything follows from the body of the request.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.models.protocol import Wire, canonical, unmarked
from holdfast.text import plural

# How the simulator and the scripted model sign thinking: bound to everything before it, as the provider's is.
#
# A signature covers the model, the account, system, tools and every block before it, cache markers aside. So a
# request
# whose prefix changed in any other way is told apart, wherever the change is.


def blocks_of(content: Any) -> list[Wire]:
    """A message's content as blocks; text alone is short for one block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


class SignatureBinding:
    """The running hash of a request's prefix, block by block."""

    def __init__(self, key: str, body: Wire, account: str = "") -> None:
        self._key = key.encode()
        self._hash = hashlib.sha256()
        self._role = ""
        system = blocks_of(body.get("system") or [])
        self._add([body.get("model"), account, unmarked(system), unmarked(list(body.get("tools") or []))])

    def _add(self, value: object) -> None:
        self._hash.update(canonical(value).encode() + b"\n")

    def turn(self, role: str) -> None:
        """A message begins; messages of one role in a row are one turn."""
        if role != self._role:
            self._role = role
            self._add(role)

    def block(self, block: Wire) -> None:
        self._add(unmarked(block))

    def sign(self, thinking: str) -> str:
        """The signature of thinking that comes next."""
        return hmac.new(self._key, self._hash.digest() + thinking.encode(), hashlib.sha256).hexdigest()


def after(key: str, body: Wire, account: str = "") -> SignatureBinding:
    """The binding where the answer to a request begins."""
    binding = SignatureBinding(key, body, account)
    for message in body["messages"]:
        binding.turn(message["role"])
        for block in blocks_of(message["content"]):
            binding.block(block)
    binding.turn("assistant")
    return binding


def forged(key: str, body: Wire, account: str = "") -> Iterator[tuple[int, int]]:
    """Where (message, block) the thinking of a request has a signature that its prefix does not bear out."""
    binding = SignatureBinding(key, body, account)
    for place, message in enumerate(body["messages"]):
        binding.turn(message["role"])
        for number, block in enumerate(blocks_of(message["content"])):
            if block.get("type") == "thinking":
                good = binding.sign(str(block.get("thinking", "")))
                if not hmac.compare_digest(good.encode(), str(block.get("signature", "")).encode()):
                    yield place, number
            binding.block(block)


CONTINUE = "Continue exactly where you stopped."
CORRECT = (
    "Your answer is not what was asked for: {wrong}. Answer again, with all of it, so that it fits the schema; "
    "say nothing else."
)
_SHOWN = 8  # messages
_CLIPPED = 300


@dataclass(frozen=True, slots=True)
class ReturnedResult:
    """The result of one of its calls that a model reads."""

    tool: str
    text: str
    is_error: bool = False

    def __str__(self) -> str:
        return f"{self.tool} {'failed' if self.is_error else 'returned'} {clip(self.text)!r}"


@dataclass(frozen=True, slots=True)
class RequestView:
    """What a model was asked: `body` is the whole request. `run`, `turn` and `agent` are known in a lab."""

    body: Wire = field(repr=False)
    run: str = ""
    turn: int = 0
    agent: str = ""

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def messages(self) -> list[Wire]:
        return list(self.body["messages"])

    @property
    def system(self) -> str:
        """The system prompt."""
        return text_in(self.body.get("system") or [])

    @property
    def tools(self) -> list[str]:
        """The names of the tools that it may use."""
        return [str(tool.get("name") or tool.get("type")) for tool in self.body.get("tools") or []]

    @property
    def text(self) -> str:
        """What the user said last."""
        return (texts_of(self.messages) or [""])[-1]

    @property
    def results(self) -> list[ReturnedResult]:
        """What its last calls returned; empty when it has made none since the user spoke."""
        last = self.messages[-1]
        if last["role"] != "user":
            return []
        names = {
            block.get("id"): str(block.get("name"))
            for message in self.messages
            for block in blocks_of(message["content"])
            if block.get("type") == "tool_use"
        }
        return [
            ReturnedResult(
                names.get(block.get("tool_use_id"), "?"),
                text_in(block.get("content") or []),
                bool(block.get("is_error")),
            )
            for block in blocks_of(last["content"])
            if block.get("type") == "tool_result"
        ]

    def told(self) -> str:
        """The end of the conversation, a line for each part."""
        messages = self.messages
        lines = [f"  … {plural(len(messages) - _SHOWN, 'message')} before"] if len(messages) > _SHOWN else []
        if self.system:
            lines.insert(0, f"  system: {clip(self.system)}")
        lines.insert(0, f"  tools: {', '.join(self.tools) or 'none'}")
        for message in messages[-_SHOWN:]:
            lines += [f"  {message['role']}: {_shown(block)}" for block in blocks_of(message["content"])]
        return "\n".join(lines)


def is_said(message: Wire) -> bool:
    """Whether a message is of a user who says something, not just the answers to calls.

    What a user says next may share a message with results: messages of one role in a row are sent as one.
    """
    if message["role"] != "user":
        return False
    return any(block.get("type") != "tool_result" for block in blocks_of(message["content"]))


def is_follow_up(message: Wire) -> bool:
    """Whether Holdfast, not a user, asks the model to continue an answer that was cut off or to repair one."""
    said = text_in(message["content"]) if is_said(message) else ""
    return said == CONTINUE or said.startswith(CORRECT.partition("{")[0])


def texts_of(messages: Sequence[Wire]) -> list[str]:
    """What users said, message by message; results aside."""
    said = [blocks_of(message["content"]) for message in messages if is_said(message)]
    return [text_in([block for block in blocks if block.get("type") == "text"]) for blocks in said]


def text_in(content: Any) -> str:
    """The text of a message, of a system prompt or of a tool's result."""
    return "\n".join(str(block["text"]) for block in blocks_of(content) if block.get("type") == "text")


def clip(text: str) -> str:
    return text if len(text) <= _CLIPPED else f"{text[:_CLIPPED]}…"


def _shown(block: Wire) -> str:
    match block.get("type"):
        case "text":
            return clip(str(block["text"]))
        case "tool_use":
            return f"calls {block['name']}({clip(json.dumps(block['input'], ensure_ascii=False))})"
        case "tool_result":
            failed = "failed" if block.get("is_error") else "returned"
            return f"({failed}) {clip(text_in(block.get('content') or []))}"
        case kind:
            return f"({kind})"
