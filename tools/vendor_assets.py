"""Vendors what pages load from npm: exact versions, each with its licence and hash in vendor.json. `make assets`.

The packages are fetched with `npm pack`, which runs nothing of theirs. Icons become one SVG sprite.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parents[1] / "src" / "holdfast" / "http" / "assets"
PACKAGES = {
    "htmx.org": ("2.0.4", {"dist/htmx.min.js": "htmx.min.js"}),
    "idiomorph": ("0.7.3", {"dist/idiomorph-ext.min.js": "idiomorph-ext.min.js"}),
    "lucide-static": ("0.468.0", {}),
}
ICONS = """activity bot boxes calendar-clock check chevron-right chevrons-left circle-x clipboard-list coins columns-2
copy cpu download git-fork inbox keyboard layers list-checks log-out menu messages-square package pause play rotate-cw
rows-3 scroll-text search send settings square sun-moon triangle-alert user wrench workflow x"""
_INSIDE = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)


def main() -> None:
    about: list[dict[str, Any]] = []
    for name, (version, wanted) in PACKAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            archive = fetched(name, version, Path(folder))
            about.append({"name": name, "version": version, **told_by(archive), "files": taken(archive, wanted)})
            if name == "lucide-static":
                (ASSETS / "icons.svg").write_text(sprite(archive))
                about[-1]["files"] = {"icons.svg": hashed((ASSETS / "icons.svg").read_bytes())}
    (ASSETS / "vendor.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"{len(about)} packages in {ASSETS.name}")


def fetched(name: str, version: str, folder: Path) -> Path:
    """The package as npm has it."""
    command = ["npm", "pack", f"{name}@{version}", "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        sys.exit(f"npm could not fetch {name} {version}: {done.stderr.strip()}")
    return next(folder.glob("*.tgz"))


def told_by(archive: Path) -> dict[str, str]:
    """The licence, and the hash by which npm knows the package."""
    package = json.loads(read(archive, "package.json"))
    return {"licence": package["license"], "sha512": hashed(archive.read_bytes())}


def taken(archive: Path, wanted: dict[str, str]) -> dict[str, str]:
    """Write the files that are wanted; their hashes by the name that they have here."""
    hashes = {}
    for inside, name in wanted.items():
        content = read(archive, inside)
        (ASSETS / name).write_bytes(content)
        hashes[name] = hashed(content)
    return hashes


def sprite(archive: Path) -> str:
    """One file with a symbol for each icon."""
    symbols = []
    for name in ICONS.split():
        found = _INSIDE.search(read(archive, f"icons/{name}.svg").decode())
        if found is None:
            sys.exit(f"the icon {name} is not an SVG picture.")
        drawn = " ".join(found[1].split())
        symbols.append(f'<symbol id="{name}" viewBox="0 0 24 24">{drawn}</symbol>')
    return '<svg xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(symbols) + "\n</svg>\n"


def read(archive: Path, inside: str) -> bytes:
    with tarfile.open(archive) as opened:
        member = opened.extractfile(f"package/{inside}")
        if member is None:
            sys.exit(f"{archive.name} has no {inside}.")
        return member.read()


def hashed(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


if __name__ == "__main__":
    main()
