"""Where things are: the repository, and the folder for what the benchmark installs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "bench"
LAST = CACHE / "last.json"
PAGE = ROOT / "docs" / "performance.md"
NOTES = ROOT / "bench" / "notes.md"
