"""A page of the documentation, done from top to bottom, as a reader would: `python snippets.py PAGE`.

In the current folder, and in one process, so that a block may use what an earlier one has made:

- A `python` block is run; `await` may stand at its top level. One that begins with `# name.py` is written to that file
  and imported. After `<!-- not run: reason -->` a block is only compiled.
- A `console` block has commands after `$`, each followed by what it prints. `python` and `holdfast` are really run.
  `…` stands for any text, `Killed` for that end, and a command with nothing after it may print what it likes. One that
  ends with `&` runs beside the others until the page ends.
- `<!-- unseen: … -->` is Python too, for what an example needs and a reader does not.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast.cli import group

_PART = re.compile(
    r"<!-- unseen:\n(?P<unseen>.*?)-->"
    r"|(?:<!-- not run: (?P<reason>[^>]+?) -->\n+)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"# (\w+)\.py\n")
_SPAN = re.compile(r"`(holdfast [^`]+)`")


class Block(NamedTuple):
    """One fenced block, or what stands unseen between two of them."""

    line: int
    language: str
    text: str
    reason: str = ""


class Wrong(Exception):
    """The page says something that is not so."""


def blocks(page: str) -> Iterator[Block]:
    for found in _PART.finditer(page):
        language = "python" if found["unseen"] is not None else found["language"]
        name = "unseen" if found["unseen"] is not None else "text"
        yield Block(page.count("\n", 0, found.start(name)), language, found[name], found["reason"] or "")


def commands(page: str) -> Iterator[str]:
    """Every `holdfast …` command line of a page: in its blocks, and in its sentences."""
    prose = page
    for block in blocks(page):
        prose = prose.replace(block.text, "")
        if block.language in ("bash", "console", ""):
            for line in block.text.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix("$ ")
                if command.startswith("holdfast "):
                    yield command
    yield from (" ".join(span.split()) for span in _SPAN.findall(prose))


def check_command(line: str) -> None:
    """Raise click's own complaint if there is no such command or option; an argument or a file may be missing."""
    words = shlex.split(re.split(r"[>|&;]", line)[0], comments=True)[1:]
    command: click.Command = group
    context = click.Context(group, info_name="holdfast")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"there is no command {name!r}")
        command, context = found, click.Context(found, parent=context, info_name=name)
    try:
        if not isinstance(command, click.Group):
            command.parse_args(context, words)
    except click.MissingParameter:
        pass
    except click.BadParameter as problem:
        if not problem.message.endswith("does not exist."):  # a file that the reader has
            raise


def run_page(file: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner, ExitStack() as beside:
        for block in blocks(file.read_text()):
            where = f"{file}:{block.line}"
            if block.language == "python":
                _run_python(block, where, names, runner)
            elif block.language == "console":
                _run_console(block.text, beside)


def _run_python(block: Block, where: str, names: dict[str, Any], runner: asyncio.Runner) -> None:
    code = compile("\n" * block.line + block.text, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if block.reason:
        return
    file = _FILE.match(block.text)
    if file:
        Path(f"{file[1]}.py").write_text(block.text)
        importlib.invalidate_caches()
        importlib.import_module(file[1])
    elif code.co_flags & inspect.CO_COROUTINE:
        runner.run(eval(code, names))
    else:
        exec(code, names)


def _run_console(text: str, beside: ExitStack) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command, comments=True)
        if words[0] not in ("python", "holdfast"):
            continue
        start = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "holdfast"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # what was printed before a kill is seen
        start += words[1:]
        if words[-1] == "&":
            process = beside.enter_context(subprocess.Popen(start[:-1], stderr=subprocess.DEVNULL, env=environment))
            beside.callback(process.terminate)
            continue
        done = subprocess.run(start, capture_output=True, text=True, timeout=300, check=False, env=environment)
        code = done.returncode
        if "Killed" in expected.splitlines():
            expected, code = expected.replace("Killed\n", ""), code + 9
        if code or (expected and not _pattern(expected).fullmatch(_tidy(done.stdout))):
            raise Wrong(f"$ {command}\n{done.stdout}{done.stderr}(code {done.returncode})\nthe page has:\n{expected}")


def _pattern(expected: str) -> re.Pattern[str]:
    return re.compile(".*?".join(map(re.escape, _tidy(expected).split("…"))), re.DOTALL)


def _tidy(text: str) -> str:
    """Columns are as wide as their longest value, which differs from run to run."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.path.insert(0, "")
    run_page(Path(sys.argv[1]))
