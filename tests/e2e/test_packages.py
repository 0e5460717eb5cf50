"""Wheel and sdist: used outside of the repository, whole, and with a README that an index can show."""

from __future__ import annotations

import email
import re
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from holdfast.errors import NAME
from tests.shape.tree import ROOT
from tests.support.commands import environment, python, run

pytestmark = pytest.mark.long  # they build the packages
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    said = python("-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    assert said.code == 0, said.err
    return folder


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith("/METADATA")]
        return email.message_from_string(files.read(name).decode())


def test_wheel_and_sdist_work_outside_of_the_repository() -> None:
    said = python(str(ROOT / "tools" / "try_wheel.py"), "--offline", "--python", sys.executable)
    assert said.code == 0, said.err
    assert [line.split()[0].rpartition(".")[2] for line in said.lines[1:]] == ["whl", "gz"], said.out


def test_the_readme_of_the_package_leads_to_no_file(metadata: Message) -> None:
    shown = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    prose = BLOCK.sub("", shown)
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", prose)
    assert not [each for each in ("<!--", "-->", "![") if each in prose]
    readme = (ROOT / "README.md").read_text()
    assert BLOCK.findall(shown) == BLOCK.findall(readme)
    assert re.findall(r"^#+ .*$", shown, re.MULTILINE) == re.findall(r"^#+ .*$", readme, re.MULTILINE)


def test_the_metadata_names_the_distribution_authors_and_no_address(metadata: Message) -> None:
    assert metadata["Name"] == NAME
    assert metadata["Author"] == "Holdfast contributors"
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None
    bounds = {need.split(";")[0].strip() for need in metadata.get_all("Requires-Dist") or []}
    for name, major in {"anthropic": 3, "mcp": 3, "pydantic": 3, "click": 9}.items():
        assert any(re.match(rf"{name}<{major}\b", bound) for bound in bounds), (name, bounds)


def test_the_sdist_passes_what_make_check_runs(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    env = environment(PYTHONPATH=str(tree / "src"))
    tools = Path(sys.executable).parent
    for command in (["ruff", "format", "--check"], ["ruff", "check", "--no-cache"], ["lint-imports", "--no-cache"]):
        said = run([str(tools / command[0]), *command[1:]], cwd=tree, env=env)
        assert said.code == 0, (command, said)
    assert python("tools/generate_docs.py", "--check", cwd=tree, env=env).code == 0
    typed = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    assert [name for name in typed if not (tree / name).is_dir()] == []  # mypy itself takes a minute
    for name in ("Makefile", "requirements.lock", "requirements-light.lock", "mkdocs.yml", ".ci/run", "LICENSE"):
        assert (tree / name).is_file(), name
