"""Attachments that mean harm: what each is, and whether it is taken. Holdfast neither decodes nor unpacks them."""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from typing import Any, NamedTuple

SCRIPT = "<script>pwned()</script>"
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="pwned()">{SCRIPT}</svg>'.encode()
PAGE = f"<!doctype html><title>x</title>{SCRIPT}".encode()
PATHS = (
    "../../../../etc/passwd",
    "..\\..\\boot.ini",
    "/etc/passwd",
    "a\r\nset-cookie: x=1",
    'x".html',
    "con.svg\u202egnp",
)


class Attachment(NamedTuple):
    name: str
    block: dict[str, Any]
    taken: bool


def _bomb() -> bytes:
    """A picture of 65,000 by 65,000 dots in some kilobytes."""
    head = struct.pack(">IIBBBBB", 65_000, 65_000, 8, 6, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(4 << 20), 9)), (b"IEND", b"")]
    made = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        made += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return made


def _packed() -> bytes:
    """A ZIP file with megabytes in some kilobytes, and a name that leads out of its folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/passwd", bytes(4 << 20))
    return file.getvalue()


def _media(kind: str, media_type: Any, data: bytes | str, **more: Any) -> dict[str, Any]:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": text}, **more}


def attachments() -> list[Attachment]:
    refused = {
        "a drawing with a script": _media("image", "image/svg+xml", SVG),
        "a page as a picture": _media("image", "text/html", PAGE),
        "a page as a document": _media("document", "text/html", PAGE),
        "an archive": _media("document", "application/zip", _packed()),
        "a type with a header in it": _media("image", "image/png\r\nset-cookie: x=1", b"x"),
        "a type that is a list": _media("image", ["image/png"], b"x"),
        "no base64": _media("image", "image/png", "!!!! not base64"),
        "no bytes": _media("image", "image/png", b""),
        "a picture of 5 MB": _media("image", "image/png", bytes((5 << 20) + 1)),
        "text of another type": {
            "type": "document",
            "source": {"type": "text", "media_type": "text/html", "data": PAGE.decode()},
        },
        "a drawing inside a result": {
            "type": "document",
            "source": {"type": "content", "content": [_media("image", "image/svg+xml", SVG)]},
        },
    }
    taken = {
        "a page that says it is a picture": _media("image", "image/png", PAGE),
        "an archive that says it is a picture": _media("image", "image/gif", _packed()),
        "a page that says it is a PDF": _media("document", "application/pdf", b"%PDF-1.7\n" + PAGE),
        "a picture that unpacks to gigabytes": _media("image", "image/png", _bomb()),
        "text that is a page": {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": PAGE.decode()},
            "title": SCRIPT,
        },
        **{f"a title like {path!r}": _media("document", "application/pdf", b"%PDF", title=path) for path in PATHS},
    }
    made = [Attachment(name, block, taken=False) for name, block in refused.items()]
    return made + [Attachment(name, block, taken=True) for name, block in taken.items()]


def problems_of(path: str, status: int, headers: dict[str, str], body: bytes, odd: list[str]) -> list[str]:
    """What is wrong with an answer about a run that has them; `odd` is what became more than text in a page."""
    kind, found = headers.get("content-type", "").partition(";")[0], []
    shown = headers.get("content-disposition", "inline")
    if kind not in ("", "text/html", "application/json", "application/problem+json", "text/event-stream"):
        found += [] if shown.startswith("attachment;") else [f"{path} is {kind} and {shown}"]
    if any(word in shown for word in ("..", "\r", "passwd", "svg")):
        found.append(f"{path} is called {shown}")
    if headers.get("x-content-type-options") != "nosniff" or "set-cookie" in headers or status >= 500:
        found.append(f"{path} is answered with {status} {headers}")
    if kind == "text/html":
        found += [f"{path} has {each}" for each in odd]
        found += [f"{path} has the script"] if SCRIPT.encode() in body else []
    return found
