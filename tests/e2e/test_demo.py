"""`holdfast demo`: what a newcomer sees first."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import holdfast


def test_the_demo_kills_a_worker_and_loses_nothing(tmp_path: Path) -> None:
    said = holdfast("demo", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    words = [line.split()[0] for line in said.out.splitlines() if not line.startswith(" ")]
    assert words == ["database", "enqueued", "started", "kill", "finished", "rescued", "witness", "nothing"]
    assert "60 of 60 jobs succeeded" in said.out
    assert "0 missing" in said.out
    assert said.lines[-1].startswith("nothing was lost")
    assert list(tmp_path.iterdir()) == [], "it cleans up"


def test_the_demo_runs_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    said = holdfast("demo", "--url", postgres_url, cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1].startswith("nothing was lost")
