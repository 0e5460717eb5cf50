"""The examples that are folders do what they say: `distributed_worker` in `tests/facades`, `resp` in `tests/resp`."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import apsw
import kubernetes_validate
import pytest
import yaml

from holdfast.facades.flatagents import WorkerRegistration, create_backends
from holdfast.facades.flatagents.registration import HoldfastRegistrationBackend
from holdfast.facades.flatagents.work import HoldfastWorkPool
from tests.conftest import Place
from tests.facades.test_leases import patiently
from tests.support.commands import environment, program, run

EXAMPLES = Path(__file__).parents[2] / "examples"
PAPERS = EXAMPLES / "papers"
TRIGGERS = EXAMPLES / "triggers"


def test_the_readme_lists_every_folder() -> None:
    listed = re.findall(r"\[(\w+)\]\(\1\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(
        path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0].isalpha()
    )


def shown(folder: Path) -> list[list[str]]:
    return [line.split(" | ") for line in program(str(PAPERS / "papers.py"), "show", cwd=folder).lines]


@pytest.mark.long
def test_a_worker_writes_the_summary_of_one_paper(tmp_path: Path) -> None:
    assert program(str(PAPERS / "papers.py"), "add", cwd=tmp_path).lines == ["3 papers wait"]
    (said,) = program(str(PAPERS / "papers.py"), "work", cwd=tmp_path).lines
    summary = {"title": "On Leases", "abstract": "A lease is a right that ends."}
    assert json.loads(said) == {"job_id": "1", "result": summary}
    leases, tokens, _ = shown(tmp_path)
    assert json.loads(Path(leases[3]).read_text()) == summary
    assert tokens == ["On Tokens", "pending", "0", "-"]


@pytest.mark.long
def test_the_paper_pipeline(tmp_path: Path) -> None:
    """Workers are processes: each takes one paper and asks its agent; the paper without an abstract is given up."""
    program(str(PAPERS / "papers.py"), "add", cwd=tmp_path)

    def all_ended() -> bool:
        (said,) = program(str(PAPERS / "papers.py"), "check", cwd=tmp_path).lines
        assert json.loads(said)["spawned"] <= 2
        return not {"pending", "claimed"} & {status for _, status, *_ in shown(tmp_path)}

    patiently(all_ended)
    leases, tokens, nothing = shown(tmp_path)
    assert (leases[1:3], tokens[1:3]) == (["done", "1"], ["done", "1"])
    assert json.loads(Path(tokens[3]).read_text())["abstract"] == "A number that rises with every claim."
    assert nothing == ["On Nothing", "poisoned", "3", "the answer has no abstract"]
    registry = create_backends({"registration_path": str(tmp_path / "workers.sqlite")}).registration
    assert isinstance(registry, HoldfastRegistrationBackend)
    patiently(lambda: {each.status for each in registry.list()} == {"terminated"})
    registry.close()


def test_the_paper_of_a_worker_that_died_goes_back(tmp_path: Path) -> None:
    program(str(PAPERS / "papers.py"), "add", cwd=tmp_path)
    registry = create_backends({"registration_path": str(tmp_path / "workers.sqlite")}).registration
    assert isinstance(registry, HoldfastRegistrationBackend)
    registry.register(WorkerRegistration("dead", pool_id="papers"))
    claimed = "update paper_queue set status = 'claimed', claimed_by = 'dead' where id = 1"
    apsw.Connection(str(tmp_path / "papers.db")).execute(claimed)
    assert program(str(PAPERS / "papers.py"), "reap", cwd=tmp_path).lines == ['{"reaped_count": 0}']
    assert program(str(PAPERS / "papers.py"), "reap", "0.001", cwd=tmp_path).lines == ['{"reaped_count": 1}']
    assert shown(tmp_path)[0] == ["On Leases", "pending", "1", "its worker has died"]
    registry.close()


class Greetings:
    """A database with names to greet, and the environment in which triggers find it."""

    def __init__(self, url: str) -> None:
        kind = "postgres" if url.startswith("postgres") else "sqlite"
        where = {"registration": kind, "work": kind, "registration_path": url, "work_path": url}
        backends = create_backends(where)
        pool = backends.work.pool("greetings")
        assert isinstance(pool, HoldfastWorkPool)
        assert isinstance(backends.registration, HoldfastRegistrationBackend)
        self.pool, self.close = pool, backends.registration.close
        path = os.pathsep.join([str(TRIGGERS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = environment(HOLDFAST_URL=url, FLATAGENTS_BACKENDS=json.dumps(where), PYTHONPATH=path)


def test_a_lambda_function_handles_each_message_once(place: Place, tmp_path: Path) -> None:
    there = Greetings(place.url)
    there.pool.push({"name": "Ann"})
    message = {"messageId": "m-1", "body": json.dumps({"pool_id": "greetings", "max_workers": 3})}
    (tmp_path / "call.py").write_text(
        f"import sys\n\nsys.path.insert(0, {str(TRIGGERS)!r})\n\nimport lambda_function\n\n"
        f"print(lambda_function.handler({{'Records': [{message!r}]}}, None))\n"
    )
    first, again = (program("call.py", cwd=tmp_path, env=there.env).lines for _ in range(2))
    assert first == ["workers stored: 1", '{"spawned": 1}', first[-1]]
    assert again == ["{'executions': ['']}"] != first[2:], "the second time runs nothing"
    there.close()


def cron_job() -> Any:
    return yaml.safe_load((TRIGGERS / "cronjob.yml").read_text())


def test_kubernetes_takes_the_cron_job() -> None:
    kubernetes_validate.validate(cron_job(), "1.30", strict=True)


@pytest.mark.long
def test_the_pod_of_the_cron_job_ends_when_its_workers_have(place: Place) -> None:
    """The command of its manifest, typed here."""
    (container,) = cron_job()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    there = Greetings(place.url)
    for name in ("Ann", "Ben"):
        there.pool.push({"name": name})
    said = run([sys.executable, "-m", *container["command"]], cwd=TRIGGERS, env=there.env)
    assert said.code == 0, said
    greeted = sorted(item.result["greeting"] for item in there.pool.items("done"))
    assert greeted == ["Hello Ann", "Hello Ben"]
    there.close()
