"""Upload: `await hf.upload("a.pdf")` gives the provider a file once, for every prompt that refers to it."""

from __future__ import annotations

import mimetypes
from datetime import UTC, datetime
from pathlib import Path

from holdfast import durations
from holdfast.agents.content import PICTURES, Document, Image
from holdfast.agents.providers import ModelCatalog
from holdfast.durations import Duration
from holdfast.errors import BadSetting, UsageError
from holdfast.models.protocol import LONGEST, SHORTEST, Files

_ANY = "claude"  # one account has one store of files, whichever of its models reads them


async def upload(book: ModelCatalog, path: str | Path, *, expires_in: Duration | None = None) -> Document | Image:
    """Upload a file to the provider, and refer to it: an Image if it is a picture, else a Document.

    The provider keeps it until it is deleted there, or for `expires_in` ("30d"; an hour to ninety days). Needs the
    key to the provider here; `ModelFailure` when it does not take the file.
    """
    file = _existing(path)
    model = book.open(_ANY)
    if not isinstance(model, Files):
        raise UsageError(f"{type(model).__name__} cannot store files: pass Document.from_path or Image.from_path.")
    media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    stored = await model.upload_file(file, media_type, expires_in=_seconds(expires_in))
    expires = None if stored.expires_us is None else datetime.fromtimestamp(stored.expires_us / 1e6, UTC)
    if media_type in PICTURES:
        return Image.from_file_id(stored.id, expires=expires)
    return Document.from_file_id(stored.id, expires=expires, title=stored.name)


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {file} to upload.")
    return file


def _seconds(expires_in: Duration | None) -> int | None:
    if expires_in is None:
        return None
    seconds = durations.microseconds(expires_in) // 1_000_000
    if not SHORTEST <= seconds <= LONGEST:
        raise BadSetting(f"expires_in must be between one hour and ninety days; got {expires_in!r}.")
    return seconds
