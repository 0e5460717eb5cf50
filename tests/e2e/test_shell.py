"""`holdfast completion` and `holdfast bench`."""

from __future__ import annotations

import pytest

from holdfast.cli import COMMANDS
from tests.conftest import Place
from tests.support.commands import environment, holdfast


@pytest.mark.sample(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str) -> None:
    said = holdfast("completion", shell)
    assert said.code == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in said.out


def completed(*words: str) -> list[str]:
    env = environment(
        _HOLDFAST_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(["holdfast", *words]),
        COMP_CWORD=str(len(words)),
    )
    return [line.partition(",")[2] for line in holdfast(env=env).out.splitlines()]


def test_commands_and_options_are_completed() -> None:
    assert completed("q") == ["queues"]
    assert [name for name in completed("") if not name.startswith("-")] == list(COMMANDS)
    assert completed("queues", "p") == ["pause"]
    assert completed("jobs", "ls", "--st") == ["--state"]
    assert completed("jobs", "ls", "--state", "su") == ["succeeded"]


@pytest.mark.long
def test_the_bench_measures_and_leaves_nothing(place: Place) -> None:
    assert holdfast("migrate", "--url", place.url).code == 0
    told = holdfast("bench", "--jobs", "50", "--url", place.url, "--json").json
    assert told["jobs"] == 50
    assert min(value for value in told.values()) > 0
    assert told["latency_p50_ms"] <= told["latency_p95_ms"]
    assert holdfast("jobs", "ls", "--url", place.url).lines == ["no jobs"]
    words = [line.split()[0] for line in holdfast("bench", "--jobs", "5", "--url", place.url).lines]
    assert words == ["database", "enqueue", "work", "latency"]


def test_the_bench_knows_its_bounds() -> None:
    assert holdfast("bench", "--jobs", "1000000").code == 2
