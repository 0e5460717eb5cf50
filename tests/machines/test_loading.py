"""The loader finds every mistake of a file, says where it is, and never crashes."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.machines import documents
from holdfast.machines.agent_calls import limits_of
from holdfast.machines.language import TABLES, schema
from holdfast.machines.load import load
from holdfast.machines.problems import BadMachine
from tests.machines.pure import SEED, machine_of, seed

BAD = """\
spec: flatmachine
spec_version: "0.8.3"
data:
  name: bad one
  contxt: {}
  context: {pool_id: "{{ input.pool_id }}", x: "{{ inpt.x }}"}
  states:
    start:
      type: initial
      action: 3
      transitions: [{to: nxt}, {to: next, condition: "context.x = 3"}]
    next:
      foreach: "{{ range(3) | lenght }}"
      output_to_context: {a: "{{ output.x }"}
      timeout: 0
      transitions:
        - condition: "contxt.y > 1"
          to: done
    orphan: {type: final}
    done:
      type: finl
      output: {a: "{{ context.pool_idd }}"}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadMachine) as refused:
        load(text, "m.yml")
    return str(refused.value).splitlines()


@pytest.mark.parametrize("name", ["job_worker", "parallelization_checker", "stale_worker_reaper"])
def test_the_machines_of_the_document_load_as_they_are_written(name: str) -> None:
    machine = seed(name)
    assert (machine.name, machine.initial, machine.version) == (name, "start", "0.8.3")
    assert not machine.warnings


def test_every_mistake_is_told_at_once_with_its_place_and_what_was_meant() -> None:
    assert mistakes(BAD) == [
        "m.yml:4:9: 'bad one' is not a name: letters, digits, _, - and ., at most 100, no digit first.",
        "m.yml:5:3: there is no key for 'data' called 'contxt'. Did you mean 'context'?",
        "m.yml:6:48: there is no name in this template called 'inpt'. Did you mean 'input'?",
        "m.yml:8:5: no final state can be reached, so the machine would never end.",
        "m.yml:10:15: 'action' must be a text; got a whole number. Put quotes around it.",
        "m.yml:11:26: there is no state 'nxt'. Did you mean 'next'?",
        "m.yml:11:37: this is never reached: the transition before it always leads to 'nxt'.",
        "m.yml:11:65: condition 'context.x = 3': '=' has no meaning here. Did you mean '=='?",
        "m.yml:13:16: template '{{ range(3) | lenght }}': there is no filter 'lenght'. Did you mean 'length'?",
        "m.yml:13:16: 'next' has foreach, and no machine, launch or action to do for each item.",
        "m.yml:14:30: template '{{ output.x }': unexpected '}'",
        "m.yml:15:16: 'timeout' is more than 0.",
        "m.yml:17:22: there is no name in conditions called 'contxt'. Did you mean 'context'?",
        "m.yml:19:5: 'orphan' can never be reached from 'start'.",
        "m.yml:20:5: 'done' leads nowhere: give it transitions, or type: final.",
        "m.yml:21:13: there is no type 'finl'. Did you mean 'final'?",
        "m.yml:22:15: 'done' is not final, and only a final state has an output.",
    ]


LOOP = """\
spec: flatmachine
spec_version: "0.8.3"
data:
  name: m
  states:
    start:
      agent: critic
      tool_loop:
        max_turns: 3
        max_tool_calls: 5
        tool_timeout: 10
        total_timeout: 60
        max_cost: 0.5
        allowed_tools: [search]
        denied_tools: [shell]
      transitions: [{to: done}]
    done: {type: final}
"""


def test_limits_of_tools_that_nobody_would_keep_are_refused_with_their_place() -> None:
    assert mistakes(LOOP) == [
        "m.yml:10:9: 'max_tool_calls' is not supported. Instead, bound its turns, with `max_turns`.",
        "m.yml:11:9: 'tool_timeout' is not supported. Instead, give it to the tool, `@hf.tool(timeout=…)`.",
        "m.yml:14:9: 'allowed_tools' is not supported. Instead, define an agent that has only these tools.",
        "m.yml:15:9: 'denied_tools' is not supported. Instead, define an agent that has only these tools.",
    ]
    kept = "\n".join(line for line in LOOP.splitlines() if "tool_calls" not in line and "tool_timeout" not in line)
    kept = kept.replace("        allowed_tools: [search]\n        denied_tools: [shell]\n", "")
    loop = load(kept, "m.yml").states["start"].tool_loop
    limits = limits_of(loop)
    assert limits is not None
    assert (limits.turns, limits.cost, limits.time) == (3, "0.5", "60000000us")
    assert mistakes(kept.replace("max_cost: 0.5", "max_cost: 0")) == ["m.yml:11:19: 'max_cost' is more than 0."]
    assert mistakes(kept.replace("agent: critic", "action: a")) == [
        "m.yml:9:9: 'tool_loop' is of an agent, and this state has none."
    ]


def test_a_field_that_is_probably_misspelt_is_a_warning() -> None:
    machine = machine_of('start: {type: final, output: {a: "{{ context.pool_idd }}"}}', data="context: {pool_id: 1}")
    (warning,) = machine.warnings
    assert "Did you mean 'pool_id'?" in str(warning)


LAUGHS = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in itertools.pairwise("abcdefghijk"))
AGENT = "spec: flatagent\nspec_version: '1.0.0'\ndata: {states: {a: {type: final}}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "m.yml:1:1: the file is empty"),
        ("a: [1, 2", "not YAML"),
        ("a: b: c", "m.yml:1:5: this is not YAML"),
        ("a: 1\na: 2", "m.yml:2:1: 'a' stands here again; it is in line 1 already."),
        ("a: *b", "nothing before this is marked &b"),
        ("--- 1\n--- 2", "a second one begins here"),
        ("a: !!python/object/apply:os.system [id]", "tags such as"),
        ("<<: {a: 1}", "merge keys"),
        ("[1]: 2", "a key is a text"),
        ("- 1", "a machine must be a mapping"),
        ("\x00", "not YAML"),
        ("a: \ud800", "not YAML"),
        ("[" * 100_000, "nested more than 40 levels deep"),
        ("{a: " * 100_000, "nested more than 40 levels deep"),
        ("x" * 2_000_000, "more than 1,048,576 bytes"),
        ("a: &a [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS, "more than 50,000 values"),
        ("\n".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else 1}]" for i in range(80)), "nested over 40 levels deep"),
        ("\n".join(f"a{i}: &a{i} 1" for i in range(200)), "more than 100 anchors"),
        ("spec: flatmachine\nspec_version: 0.8\ndata: {states: {}}", "'spec_version' must be a text; got a number"),
        (f"spec: flatmachine\nspec_version: '{'9' * 5_000}.0'\ndata: {{states: {{}}}}", "is not a version"),
        ("data:\n  settings: {timeout: 1e999}", "m.yml:2:23: this number is too large"),
        (AGENT, "there is no spec 'flatagent'. Did you mean 'flatmachine'?"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_at_once(text: str, said: str) -> None:
    assert any(said in line for line in mistakes(text)), mistakes(text)


def test_on_and_yes_are_texts() -> None:
    node = documents.read_document("{on: yes, off: [no, true, ~, 1, 1.5, '1', 0x10]}", "m.yml")
    assert documents.plain_value(node) == {"on": "yes", "off": ["no", True, None, 1, 1.5, "1", "0x10"]}


@settings(max_examples=100)
@given(st.text(alphabet="specflatmchinvrod:_ \n-{}[]&*!|>'\"#,.%01\t\u00e9", max_size=120))
def test_any_text_is_loaded_or_refused(text: str) -> None:
    with pytest.raises(BadMachine):
        load(text, "m.yml")


plain = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=8)
    | st.sampled_from(["{{ context.x }}", "start", "final", "{{ x"])
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def anything(table: str) -> st.SearchStrategy[object]:
    keys = {name: st.one_of(values, *([anything(key.of)] if key.of else [])) for name, key in TABLES[table].items()}
    if table == "data":
        keys["states"] = st.dictionaries(st.sampled_from(["start", "a", "b"]), anything("state") | values, max_size=3)
    if table == "state":
        keys["transitions"] = st.lists(anything("transition") | values, max_size=2)
    return st.fixed_dictionaries({}, optional=keys)


@pytest.mark.long
@settings(max_examples=100)
@given(anything("machine"))
def test_a_file_with_the_right_keys_and_any_values_is_loaded_or_refused(document: object) -> None:
    with contextlib.suppress(BadMachine):
        load(json.dumps(document), "m.yml")


def test_the_schema_is_shipped_as_the_table_says() -> None:
    file = Path(documents.__file__).parent / "flatmachine.schema.json"
    assert json.loads(file.read_text()) == schema()


def test_the_schema_takes_what_the_loader_takes() -> None:
    jsonschema = importlib.import_module("jsonschema")  # comes with mcp; it ships no types
    for file in sorted(SEED.glob("*.yml")):
        jsonschema.validate(documents.plain_value(documents.read_document(file.read_text(), file.name)), schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(documents.plain_value(documents.read_document(BAD, "m.yml")), schema())


def test_a_mistake_is_told_where_it_stands_and_not_where_its_state_begins() -> None:
    told = mistakes(
        """\
spec: flatmachine
spec_version: "0.8.3"
data:
  name: m
  states:
    start:
      action: a
      on_error:
        KeyError: dne
        default: done
      mode: any
      transitions:
        - condition: context.x = 3
          to: done
        - condition: |
            context.x > 1 and
            context.y ? 2
          to: done
        - to: run
    run:
      wait_for: ok
      foreach: [1]
      output: {a: 1}
      on_error: dne
      transitions: [{to: talk}]
    talk:
      agent: critic
      machine:
        - {input: {}, name: 3}
      input:
        text: |
          Hello
          {{ context.x | lenght }}
      as: paper
      transitions: [{to: done}]
    done:
      type: final
      transitions: [{to: start}]
"""
    )
    assert [line.removeprefix("m.yml:").partition(": ")[::2] for line in told] == [
        ("9:19", "there is no state (on_error of 'start') 'dne'. Did you mean 'done'?"),
        ("11:13", "'start' has mode any and one machine: name several."),
        ("13:32", "condition 'context.x = 3': '=' has no meaning here. Did you mean '=='?"),
        ("17:1", "condition 'context.x > 1 and\\ncontext.y ? 2\\n': '?' has no meaning here."),
        ("21:17", "'run' has wait_for, which stands alone: wait in a state of its own."),
        ("22:16", "'run' has foreach, and no machine, launch or action to do for each item."),
        ("23:15", "'run' is not final, and only a final state has an output."),
        ("24:17", "there is no state (on_error of 'run') 'dne'. Did you mean 'done'?"),
        ("29:9", "'talk' has both an agent and a machine: use two states."),
        ("29:29", "a machine in a list has a name."),
        ("33:1", "template 'Hello {{ context.x | lenght }}': there is no filter 'lenght'. Did you mean 'length'?"),
        ("34:11", "'talk' has as, and no foreach."),
        ("38:20", "'done' is final, so it has no transitions."),
    ]


def test_a_field_that_is_probably_misspelt_is_told_where_it_is_read() -> None:
    states = 'start: {transitions: [{condition: "context.pool_idd > 1", to: done}, {to: done}]}\ndone: {type: final}'
    (warning,) = machine_of(states, data="context: {pool_id: 1}").warnings
    assert warning.at.column == 39
