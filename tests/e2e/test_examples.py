"""The programs in `examples/` do what they say."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Place
from tests.support.commands import environment, holdfast, python

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_run_here() -> None:
    programs = {"quickstart.py", "jobs.py", "images.py", "family.py", "transactions.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == programs


def test_quickstart(tmp_path: Path) -> None:
    for _ in range(2):
        said = python(str(EXAMPLES / "quickstart.py"), cwd=tmp_path)
        assert said == (0, "hello, Oslo\n", "")
    jobs = holdfast("jobs", "ls", "--url", f"sqlite:///{tmp_path / 'quick.db'}", "--json").json
    assert [(job["kind"], job["state"], job["result"]) for job in jobs] == [
        ("quickstart.greet", "succeeded", "hello, Oslo")
    ] * 2


def test_jobs(tmp_path: Path, place: Place) -> None:
    said = python(str(EXAMPLES / "jobs.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    first, rest = said.lines[:5], said.lines[5:]
    assert first == [
        "downloading https://example.org/a.png",
        "attempt 1",  # snoozed
        "attempt 1",  # failed
        "attempt 2",
        "the bytes of https://example.org/a.png, 400 wide",
    ]
    assert sorted(rest[:-2]) == ["attempt 1", "attempt 1", "downloading b.png", "downloading c.png"]
    assert rest[-2:] == ["the bytes of b.png, 800 wide", "the bytes of c.png, 800 wide"]


def test_images(tmp_path: Path, place: Place) -> None:
    env = environment(HOLDFAST_URL=place.url, PYTHONPATH=str(EXAMPLES))
    said = python(str(EXAMPLES / "images.py"), cwd=tmp_path, env=env)
    assert said == (0, "the bytes of https://example.org/a.png, 400 wide\n", "")
    (schedule,) = holdfast("schedules", "ls", "--json", env=env).json
    assert (schedule["name"], schedule["timezone"]) == ("images.nightly", "Europe/Athens")

    (tmp_path / "full").touch()
    assert holdfast("schedules", "run", "images.nightly", env=env).code == 0
    assert holdfast("worker", "images:hf", "--until-empty", cwd=tmp_path, env=env).code == 0
    (night,) = holdfast("jobs", "ls", "--kind", "images.nightly", "--json", env=env).json
    assert night["state"] == "succeeded"
    second, first, _ = holdfast("jobs", "ls", "--kind", "images.resize", "--json", env=env).json
    assert [job["payload"]["url"] for job in (first, second)] == ["b.png", "c.png"]
    assert (first["state"], first["attempts"]) == ("scheduled", 0)  # it snoozes; the other one may wait for the rate


def test_family(tmp_path: Path, place: Place) -> None:
    said = python(str(EXAMPLES / "family.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said == (0, 'The Storm: 7 words, thin says Ann\nnote: "chapter three is empty"\n', "")
    (parent,) = holdfast("jobs", "ls", "--url", place.url, "--kind", "family.review", "--json").json
    assert parent["attempts"] == 1
    children = holdfast("jobs", "ls", "--url", place.url, "--kind", "family.count_words", "--json").json
    assert {child["parent"] for child in children} == {parent["seq"]}


def test_transactions(tmp_path: Path) -> None:
    said = python(str(EXAMPLES / "transactions.py"), cwd=tmp_path)
    assert said == (0, "A1 is confirmed\nA2 is out of stock\n1 order, 1 job\n", "")


def test_a_worker_can_be_started_for_an_example(place: Place) -> None:
    said = holdfast("worker", "jobs:hf", "--url", place.url, "--until-empty", cwd=EXAMPLES)
    assert said.code == 0
