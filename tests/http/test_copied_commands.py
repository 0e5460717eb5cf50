"""What a page offers to copy into a shell does what it says, whatever a name contains."""

from __future__ import annotations

import html
import json
import re
import shlex

import pytest

from holdfast import Holdfast
from holdfast.http.pages.rendering import json_string, shell_address, shell_body
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
    "x\n'touch pwned'",
)


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
    assert shlex.split(command)[:3] == ["holdfast", "run", row.name]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_a_body_is_json(name: str) -> None:
    assert json.loads(f'{{"machine": {json_string(name)}}}') == {"machine": name}
