"""How the simulator and the scripted model sign thinking: bound to everything before it, as the provider's is.

A signature covers the model, the account, system, tools and every block before it, cache markers aside. So a request
whose prefix changed in any other way is told apart, wherever the change is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

from holdfast.models.protocol import Wire, canonical, unmarked


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
