"""The set-up of `.venv` by make, in two stages: what `make demo` needs, then all the rest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.shape.tree import ROOT
from tests.support.commands import Said, environment, run

# Stands for python3, and puts itself into the environments it makes. It writes down what it was asked for, and fails
# where the file `broken` says so.
PYTHON = """\
#!/bin/sh
case "$*" in
    '-c '*) ;;
    *-m\\ venv*) rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo venv >>done ;;
    *-r\\ *) for last; do :; done; echo "$last" >>done; ! grep -qsx "$last" broken ;;
    *-e*) echo ours >>done ;;
esac
"""


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-light.lock"):
            shutil.copy(ROOT / name, folder)
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)

    def make(self, stamp: str) -> Said:
        (self.folder / "done").unlink(missing_ok=True)
        env = environment(PYTHON=str(self.folder / "python"), MAKEFLAGS="")
        return run(["make", f".venv/{stamp}"], cwd=self.folder, env=env)

    def done(self, stamp: str) -> list[str]:
        """What was installed to get there."""
        said = self.make(stamp)
        assert said.code == 0, said
        return (self.folder / "done").read_text().split() if (self.folder / "done").exists() else []

    def change(self, name: str) -> None:
        """Make this file newer than all others."""
        for path in (*self.folder.glob("*"), *self.folder.glob(".venv/.*")):
            os.utime(path, (1e9, 1e9))
        (self.folder / name).touch()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_demo_needs_few_packages_and_the_tests_add_the_rest(checkout: Checkout) -> None:
    assert checkout.done(".light") == ["venv", "requirements-light.lock"]
    assert checkout.done(".light") == []
    assert checkout.done(".ready") == ["requirements.lock", "ours"], "it does not start over"
    assert checkout.done(".ready") == checkout.done(".light") == []


def test_a_set_up_that_was_interrupted_starts_over(checkout: Checkout) -> None:
    for stage in ("requirements-light.lock", "requirements.lock"):
        (checkout.folder / "broken").write_text(stage)
        assert checkout.make(".ready").code != 0
        assert checkout.make(".ready").code != 0
        (checkout.folder / "broken").unlink()
        assert checkout.done(".light") == ["venv", "requirements-light.lock"], stage
    assert checkout.done(".ready") == ["requirements.lock", "ours"]


def test_a_change_is_installed(checkout: Checkout) -> None:
    everything = ["venv", "requirements-light.lock", "requirements.lock", "ours"]
    assert checkout.done(".ready") == everything
    for name, needed in {
        "pyproject.toml": ["ours"],
        "requirements.lock": everything,
        "requirements-light.lock": everything,
    }.items():
        checkout.change(name)
        assert checkout.done(".ready") == needed, name
        assert checkout.done(".ready") == []
