"""axe-core, which finds what people with other eyes and hands cannot use. npm fetches it once, into .cache."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from bench.places import ROOT

VERSION = "4.10.3"
SHA512 = "sha512-Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
_CACHE = ROOT / ".cache" / "axe-core"


def axe_source() -> str:
    """The script that a page is examined with. Without it, the tests that need it fail, and say how it is had."""
    archive = _CACHE / f"axe-core-{VERSION}.tgz"
    if not archive.exists():
        _fetch(archive)
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert found == SHA512, f"axe-core {VERSION} is not the one that was pinned: {found}"
    with tarfile.open(archive) as opened:
        member = opened.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def _fetch(archive: Path) -> None:
    if shutil.which("npm") is None:
        pytest.fail("pages are examined with axe-core, which npm fetches: apt-get install npm")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        command = ["npm", "pack", f"axe-core@{VERSION}", "--silent", "--ignore-scripts", "--pack-destination", folder]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"npm could not fetch axe-core {VERSION}: {done.stderr.strip()}")
        (Path(folder) / archive.name).rename(archive)
