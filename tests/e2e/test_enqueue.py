"""`holdfast enqueue` and `holdfast run`: a job and a run of your program, from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Said, environment, holdfast
from tests.support.terminals import terminal

PROGRAM = '''
import os
from holdfast import Holdfast, Queue, Retry

hf = Holdfast(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
hf.queue("slow", Queue(concurrency=1))


@hf.job
async def greet(name: str, times: int = 1) -> str:
    return f"hello, {name}" * times


@hf.job(name="reports.greet")
async def other() -> None: ...


@hf.job(retry=Retry(attempts=1))
async def fail() -> None:
    raise LookupError("no such page")


@hf.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


guide = hf.agent("guide", model="scripted:", tools=[weather])
'''


class Shop:
    """A folder with a program that pyproject.toml names, and its database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.env = environment(SHOP_URL=url)
        (folder / "shop.py").write_text(PROGRAM)
        (folder / "pyproject.toml").write_text('[tool.holdfast]\napp = "shop:hf"\n')

    def __call__(self, *words: str) -> Said:
        return holdfast(*words, cwd=self.folder, env=self.env)

    def work(self) -> None:
        assert self("worker", "--until-empty", "--log-level", "error").code == 0


@pytest.fixture
def shop(tmp_path: Path, empty: str) -> Shop:
    folder = tmp_path / "shop"
    folder.mkdir()
    return Shop(folder, empty)


@pytest.mark.both
def test_a_job_is_enqueued_and_its_result_is_printed(shop: Shop) -> None:
    words = ("enqueue", "shop.greet", '{"name": "Oslo"}', "--key", "a")
    first = shop(*words, "--json").json
    assert (first["kind"], first["queue"], first["fresh"]) == ("shop.greet", "default", True)
    assert shop(*words).lines == [f"shop.greet is enqueued as job {first['id']}, which was there already"]
    shop.work()
    waited = shop(*words, "--wait")
    assert waited.lines == ['"hello, Oslo"']
    assert first["id"] in waited.err
    ended = shop(*words, "--wait", "--json").json
    assert (ended["id"], ended["state"], ended["result"]) == (first["id"], "succeeded", "hello, Oslo")


def test_a_payload_has_the_arguments_by_name_or_in_order_or_comes_from_a_pipe(shop: Shop) -> None:
    ids = [
        shop("enqueue", "shop.greet", payload, "--json").json["id"] for payload in ('["Rome", 2]', '{"name": "Bern"}')
    ]
    words = ("enqueue", "shop.greet", "-", "--json")
    piped = holdfast(*words, cwd=shop.folder, env=shop.env, typed='{"name": "Paris"}').json
    shown = [shop("jobs", "show", id, "--json").json["payload"] for id in ids]
    assert shown == [{"name": "Rome", "times": 2}, {"name": "Bern", "times": 1}]
    (newest, *_) = shop("jobs", "ls", "--json").json
    assert newest["payload"]["name"] == "Paris"
    assert newest["id"] == piped["id"]


def test_a_queue_that_is_new_is_named(shop: Shop) -> None:
    words = ("enqueue", "shop.greet", '["Oslo"]', "--json", "--queue")
    assert shop(*words, "slow").err == "", "the program declares it"
    assert shop(*words, "slwo").err == "queue slwo is new. Did you mean 'slow'?\n"
    assert shop(*words, "slwo").err == ""


def test_a_job_goes_to_another_queue_and_starts_later(shop: Shop) -> None:
    moved = shop("enqueue", "shop.greet", '["Oslo"]', "--queue", "slow", "--in", "1h", "--json").json
    job = shop("jobs", "show", moved["id"], "--json").json
    assert (job["queue"], job["state"]) == ("slow", "scheduled")
    assert [lane["name"] for lane in shop("queues", "show", "slow", "--json").json["lanes"]] == ["queue:slow"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gret",), "the app has no job 'gret'; it has reports.greet, shop.fail, shop.greet. Did you mean 'greet'?"),
        (("greet",), "the app has more than one job 'greet'; it has reports.greet, shop.greet."),
        (("guide",), "guide is an agent, not a job: `holdfast run guide TEXT` gives it a text."),
        (("shop.greet", "{x"), "the payload is not JSON"),
        (("shop.greet", "7"), "the payload is a JSON object with the arguments by name"),
        (("shop.greet", '{"nme": "Oslo"}'), "arguments of job 'shop.greet': name: Field required."),
        (("shop.greet", '{"name": "Oslo", "priority": 1}'), "priority: Extra inputs are not permitted."),
    ],
    ids=" ".join,
)
def test_what_cannot_be_enqueued(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    shop = Shop(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    assert said in shop("enqueue", *words).refused(2)
    assert not (tmp_path / "shop.db").exists()


def test_a_job_that_failed_is_an_error(shop: Shop) -> None:
    words = ("enqueue", "fail", "--key", "a")
    shop(*words)
    shop.work()
    said = shop(*words, "--wait")
    assert said.code == 3
    assert 'raise LookupError("no such page")' in said.err, "the line of the program that raised"
    assert said.err.rstrip().endswith("LookupError: no such page")
    told = json.loads(shop(*words, "--wait", "--json").out)
    assert told["error"] == "RunFailed"
    assert 'raise LookupError("no such page")' in told["traceback"]


def test_an_agent_is_run(shop: Shop) -> None:
    words = ("run", "guide", "Oslo", "--key", "a", "--session", "ann")
    first = shop(*words, "--json").json
    shop.work()
    waited = shop(*words, "--wait")
    assert waited.lines == ["sunny in Oslo"]
    assert waited.err.startswith(f"run {first['id']} of guide is enqueued"), "before the wait"
    ended = shop(*words, "--wait", "--json").json
    assert (ended["text"], ended["outcome"]) == ("sunny in Oslo", "answered")
    assert first.items() <= ended.items(), "the same names before and after the end"
    assert shop("sessions", "show", "ann", "--json").json["id"] == first["session"]
    assert first.items() <= shop("runs", "show", first["id"], "--json").json.items(), "the names of `runs show`"
    shown = terminal(*words, "--wait", cwd=shop.folder, env=shop.env)
    assert shown.splitlines()[-1] == "sunny in Oslo"
    assert "[weather" in shown, "a terminal shows what happens on the way"


def test_an_agent_of_the_store_is_run_without_its_code(shop: Shop, tmp_path: Path) -> None:
    shop("run", "guide", "Oslo")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = holdfast("run", "guide", "Rome", "--url", shop.env["SHOP_URL"], "--json", cwd=elsewhere)
    assert shop("runs", "show", said.json["id"], "--json").json["agent_name"] == "guide"


def test_an_agent_that_is_not_there(shop: Shop) -> None:
    line = shop("run", "gide", "Oslo").refused(2)
    assert line == "there is no agent gide in this database. The app declares guide. Did you mean 'guide'?"
