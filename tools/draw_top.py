"""Draws `holdfast top` as it looks on a store that is at work: docs/images/top.txt and top.svg.

Run it beside some workers: python tools/draw_top.py sqlite:///shop.db
"""

from __future__ import annotations

import asyncio
import sys
from html import escape
from pathlib import Path

from holdfast import Holdfast
from holdfast.cli.top import sampler_for
from holdfast.cli.top.cells import Line, Style, text
from holdfast.cli.top.frame import Look, frame

FOLDER = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 100, 30
CELL, ROW, EDGE = 8.4, 18, 16
COLOURS: dict[Style, str] = {
    "plain": "#d0d7de",
    "title": "#56d4dd",
    "head": "#8b949e",
    "dim": "#6e7681",
    "good": "#3fb950",
    "busy": "#58a6ff",
    "warn": "#d29922",
    "bad": "#f85149",
    "chosen": "#ffffff",
}


def svg(lines: list[Line]) -> str:
    width, height = WIDTH * CELL + 2 * EDGE, len(lines) * ROW + 2 * EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="14"',
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
    ]
    for number, line in enumerate(lines):
        at = 0
        for span in line:
            length = len(span.text)
            if span.text.strip():
                bold = ' font-weight="bold"' if span.style in ("title", "head", "bad") else ""
                parts.append(
                    f'<text x="{EDGE + at * CELL:.1f}" y="{EDGE + number * ROW + 14}" textLength="{length * CELL:.1f}"'
                    f' fill="{COLOURS[span.style]}"{bold} xml:space="preserve">{escape(span.text)}</text>'
                )
            at += length
    return "\n".join([*parts, "</svg>", ""])


async def main(url: str) -> None:
    async with Holdfast(url, embedded=False) as app:
        sample = await sampler_for(app).sample()
    lines = frame(sample, Look(WIDTH, HEIGHT))
    (FOLDER / "top.svg").write_text(svg(lines))
    (FOLDER / "top.txt").write_text("\n".join(text(line) for line in lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
