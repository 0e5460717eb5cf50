"""The first command in a new database, as the pages about the gateway begin."""

from __future__ import annotations

import json
from pathlib import Path

from tests.resp.test_jobs import PLAN
from tests.support.commands import environment, holdfast


def test_a_key_is_the_first_thing_in_a_new_database(tmp_path: Path) -> None:
    """So the page about it begins: nobody has to make the database before."""
    url = f"sqlite:///{tmp_path}/new.db"
    assert len(holdfast("resp", "keys", "add", "w1", "--url", url).lines[0]) == 64
    assert [each["name"] for each in holdfast("resp", "keys", "ls", "--url", url, "--json").json] == ["w1"]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    for name, words in (("plan", ("plan", "submit", str(plan))), ("none", ("resp", "keys", "revoke", "w1"))):
        said = holdfast(*words, "--url", f"sqlite:///{tmp_path}/{name}.db", env=environment())
        assert (said.code == 0) == (name == "plan"), said
