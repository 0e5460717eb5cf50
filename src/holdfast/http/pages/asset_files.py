"""Assets: the files that pages load, by the hash of all of them, so that a browser keeps them for ever."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from holdfast.http.security.denials import absent

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PATH = "/assets/{version}/{name}"


@cache
def stored() -> dict[str, bytes]:
    """The files by name."""
    folder = files("holdfast.http.assets")
    return {each.name: each.read_bytes() for each in folder.iterdir() if _kind(each.name) is not None}


@cache
def version() -> str:
    """Changes with any of the files."""
    digest = hashlib.sha256()
    for name, content in sorted(stored().items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


async def serve_asset(request: Request) -> Response:
    """A file. Who asks with the hash of another release gets this one's, and does not keep it."""
    name = request.path_params["name"]
    content = stored().get(name)
    if content is None:
        raise absent()
    current = request.path_params["version"] == version()
    kept = "public, max-age=31536000, immutable" if current else "no-cache"
    headers = {"cache-control": kept, "etag": f'"{version()}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_kind(name))


def _kind(name: str) -> str | None:
    return next((kind for ending, kind in _TYPES.items() if name.endswith(ending)), None)
