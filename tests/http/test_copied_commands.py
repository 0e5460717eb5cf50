"""What a page offers to copy into a shell does what it says, whatever a name contains."""

from __future__ import annotations

import html
import json
import re
import shlex
from typing import Any

import click
import pytest
from click.core import ParameterSource

from holdfast import Holdfast
from holdfast.agents.doctor import judge_lanes
from holdfast.agents.rows import ClosedLane
from holdfast.cli import group
from holdfast.http.pages.rendering import json_string, line, shell, shell_address, shell_body
from tests.http.browsing import browser
from tests.http.test_fleet_pages import text

HOSTILE = (
    "plain",
    "it's; touch pwned; '",
    '"; touch pwned; "',
    "$(touch pwned)",
    "`touch pwned`",
    "a\\' && touch pwned #",
    "!touch pwned",
    "--app=evil:hf",
    "-h",
    "x\n'touch pwned'",
)


def arguments_of(command: str) -> dict[str, Any]:
    """What a command of ours takes for arguments, if it takes nothing for an option."""
    program, *words = shlex.split(command)
    assert program == "holdfast"
    parsing: click.Command = group
    while isinstance(parsing, click.Group):
        name, found, words = parsing.resolve_command(click.Context(parsing), words)
        assert found is not None, name
        parsing = found
    context = parsing.make_context(parsing.name, words)
    arguments = {each.name for each in parsing.params if isinstance(each, click.Argument)}
    assert not [name for name in context.params if name not in arguments and is_given(context, name)]
    return {name: value for name, value in context.params.items() if name in arguments}


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "command",
    [
        *("lanes open", "workers drain", "plan rm", "queues resume", "queues pause", "runs why", "jobs why"),
        *("schedules run", "schedules resume", "schedules pause", "schedules delete", "jobs cancel", "runs cancel"),
    ],
)
def test_the_last_word_of_a_command_is_a_name(command: str, name: str) -> None:
    (value,) = [each for each in arguments_of(f"holdfast {command} {shell(name)}").values() if each]
    assert value in (line(name), (line(name),))


@pytest.mark.parametrize("name", HOSTILE)
def test_what_doctor_says_of_a_lane_names_this_lane(name: str) -> None:
    (found,) = judge_lanes([ClosedLane(name, None, 1, "no money", 0, 0, 2)])
    commands = re.findall(r"`(holdfast .*)`", found.remedy)
    assert [arguments_of(each) for each in commands] == [{"name": line(name)}]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_word_of_a_command_stays_one_word(name: str) -> None:
    for word in (shell_body(name), shell_address(f"/api/v1/agents/{name}")):
        assert len(shlex.split(word)) == 1, word
    address = shell_address(f"/api/v1/agents/{name}")
    unquoted = re.sub(r"'[^']*'", "", address.removeprefix('"$WEB'))
    assert not set(unquoted) & set("$`!"), address


@pytest.mark.parametrize("name", HOSTILE)
async def test_the_page_of_an_agent_offers_a_request_for_this_agent(hf: Holdfast, name: str) -> None:
    row = await hf.agents.create(name.replace("\n", " "), model="scripted:")
    page = await text(browser(hf), f"/agents/{row.id}")
    commands = [html.unescape(each) for each in re.findall(r"<pre class=\"command\"><code>(.*?)</code>", page, re.S)]
    (curl,) = [each for each in commands if each.startswith("curl")]
    words = shlex.split(curl)
    assert json.loads(words[words.index("-d") + 1])["agent"] == row.name
    assert words[:4] == ["curl", "-X", "POST", "$WEB/api/v1/runs"]
    assert len(words) == 10, words
    (command,) = [each for each in commands if each.startswith("holdfast")]
    assert arguments_of(command) == {"agent": row.name, "text": "…"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_a_body_is_json(name: str) -> None:
    assert json.loads(f'{{"machine": {json_string(name)}}}') == {"machine": name}
