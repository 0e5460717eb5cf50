"""Files that the simulated provider keeps, each for the account that uploaded it, until it expires or is deleted."""

from __future__ import annotations

import email
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from typing import Any

from holdfast.models.protocol import LONGEST, SHORTEST, Wire
from holdfast.models.request_view import blocks_of
from holdfast.models.simulator.http import RequestRefused, need


@dataclass(frozen=True, slots=True)
class KeptFile:
    id: str
    account: str
    name: str
    media_type: str
    data: bytes
    created_us: int
    expires_us: int | None

    def wire(self) -> Wire:
        return {
            "id": self.id,
            "type": "file",
            "filename": self.name,
            "mime_type": self.media_type,
            "size_bytes": len(self.data),
            "created_at": _iso(self.created_us),
            "downloadable": False,
            "expires_at": None if self.expires_us is None else _iso(self.expires_us),
        }


@dataclass(slots=True)
class Cabinet:
    """All files, by id."""

    files: dict[str, KeptFile] = field(default_factory=dict)
    uploads: int = 0

    def add(self, account: str, content_type: str, body: bytes, seed: int, now: int) -> KeptFile:
        """Keep what a form brings; `Refused` if it is none."""
        form = _read_form(content_type, body)
        need("file" in form, "file: Field required")
        name, media_type, data = form["file"]
        need(bool(data), "file: must not be empty")
        expires = None
        if "expires_in_seconds" in form:
            seconds = form["expires_in_seconds"][2].decode(errors="replace")
            need(seconds.isdigit(), "expires_in_seconds: Input should be a valid integer")
            need(SHORTEST <= int(seconds) <= LONGEST, f"expires_in_seconds: must be between {SHORTEST} and {LONGEST}")
            expires = now + int(seconds) * 1_000_000
        self.uploads += 1
        id = "file_" + hashlib.sha256(f"{seed}/{self.uploads}".encode()).hexdigest()[:24]
        self.files[id] = kept = KeptFile(id, account, name or "unnamed", media_type, data, now, expires)
        return kept

    def find(self, account: str, id: Any, now: int) -> KeptFile:
        kept = self.files.get(id) if isinstance(id, str) else None
        if kept is None or kept.account != account:
            raise RequestRefused(f"File not found: {id}", status=404, type="not_found_error")
        if kept.expires_us is not None and kept.expires_us <= now:
            raise RequestRefused(f"File expired: {id}", status=404, type="not_found_error", code="file_expired")
        return kept

    def delete(self, kept: KeptFile) -> Wire:
        del self.files[kept.id]
        return {"id": kept.id, "type": "file_deleted"}

    def check_references(self, body: Wire, account: str, now: int) -> None:
        """`Refused` when a message refers to a file that is not, or no longer, there."""
        for message in body["messages"]:
            for id in _references(blocks_of(message["content"])):
                self.find(account, id, now)


def _references(blocks: list[Any]) -> Iterator[Any]:
    for block in blocks:
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "file":
            yield source.get("file_id")
        if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            yield from _references(block["content"])


def _read_form(content_type: str, body: bytes) -> dict[str, tuple[str, str, bytes]]:
    """The parts of a multipart form: name -> (file name, media type, bytes)."""
    need(content_type.startswith("multipart/form-data"), "Content-Type should be multipart/form-data")
    message = email.message_from_bytes(f"content-type: {content_type}\r\n\r\n".encode() + body)
    parts = message.get_payload() if message.is_multipart() else []
    form: dict[str, tuple[str, str, bytes]] = {}
    for part in parts if isinstance(parts, list) else []:
        assert isinstance(part, Message)
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(data, bytes):
            form[name] = (part.get_filename() or "", part.get_content_type(), data)
    return form


def _iso(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat().replace("+00:00", "Z")
