"""Debian's Chromium, for tests of pages. It is installed if it is missing and we may install it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

_PACKAGES = ("chromium", "fonts-noto-color-emoji")


def find_chromium() -> str:
    """Where it is. Without it, the tests that need it fail, and say how it is installed."""
    found = shutil.which("chromium")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "update"], check=False)
        subprocess.run(["apt-get", "-qq", "install", "--no-install-recommends", "-y", *_PACKAGES], check=False)
        found = shutil.which("chromium")
    if found is None:
        pytest.fail(f"pages are tested in Chromium: apt-get install {' '.join(_PACKAGES)}")
    return found
