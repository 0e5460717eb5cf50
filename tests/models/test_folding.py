"""Events fold into the reply that the provider would have returned whole, however they were cut into deltas."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import InputPiece, ModelFailure, Reply, ReplyFold, TextPiece, ThinkingPiece

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 1, "cache_creation": {"ephemeral_1h_input_tokens": 2}},
    },
}
END: list[dict[str, Any]] = [
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 7},
    },
    {"type": "message_stop"},
]

KEYS = {"text": "text", "thinking": "thinking", "input_json": "partial_json"}


def folded(*events: dict[str, Any]) -> Reply:
    folding = ReplyFold()
    for event in events:
        folding.feed(event)
    return folding.reply()


def block(index: int, start: dict[str, Any], kind: str, pieces: list[str]) -> list[dict[str, Any]]:
    deltas = [{"type": f"{kind}_delta", KEYS.get(kind, kind): piece} for piece in pieces]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


texts = st.text(min_size=1, max_size=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    texts,
    texts,
    st.dictionaries(st.text(max_size=5), json_values, max_size=4),
    st.lists(st.integers(0, 99), max_size=9),
)
def test_any_split_of_deltas_folds_to_the_same_blocks(
    text: str, thought: str, given_input: dict[str, Any], cuts: list[int]
) -> None:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}
    reply = folded(
        START,
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, "thinking", pieces(thought, cuts)),
        {"type": "ping"},
        *block(1, {"type": "text", "text": ""}, "text", pieces(text, cuts)),
        *block(2, tool, "input_json", ["", *pieces(json.dumps(given_input), cuts)]),
        *END,
    )
    assert reply.blocks == [
        {"type": "thinking", "thinking": thought, "signature": ""},
        {"type": "text", "text": text},
        {**tool, "input": given_input},
    ]
    assert (reply.text, reply.bad_inputs, reply.duplicates) == (text, {}, ())


def test_usage_is_cumulative_so_a_later_counter_replaces_an_earlier_one() -> None:
    deltas = [
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": n, "input_tokens": None}} for n in (3, 5)
    ]
    reply = folded(START, *deltas, *END)
    assert reply.usage == {"input_tokens": 9, "output_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 2}}


def test_deltas_are_told_as_they_come() -> None:
    folding = ReplyFold()
    events = [
        START,
        *block(0, {"type": "thinking", "thinking": ""}, "thinking", ["a"]),
        *block(1, {"type": "text", "text": ""}, "text", ["b"]),
        *block(2, {"type": "tool_use", "id": "t", "name": "n", "input": {}}, "input_json", ["{}"]),
        *END,
    ]
    told = [delta for event in events if (delta := folding.feed(event))]
    assert told == [ThinkingPiece(0, "a"), TextPiece(1, "b"), InputPiece(2, "{}")]
    assert folding.complete


def test_citations_signatures_and_redacted_thinking_are_kept() -> None:
    cited = [{"type": "char_location", "cited_text": "x"}, {"type": "page_location", "cited_text": "y"}]
    begin = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": "", "citations": None},
    }
    reply = folded(
        START,
        begin,
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": c}}
            for c in cited
        ),
        {"type": "content_block_stop", "index": 0},
        *block(1, {"type": "thinking", "thinking": "", "signature": ""}, "signature", ["sig"]),
        *block(2, {"type": "redacted_thinking", "data": "secret"}, "text", []),
        *END,
    )
    assert reply.blocks[0]["citations"] == cited
    assert reply.blocks[1]["signature"] == "sig"
    assert reply.blocks[2] == {"type": "redacted_thinking", "data": "secret"}


def test_server_tools_and_their_results_are_blocks_like_others() -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}
    reply = folded(START, *block(0, use, "input_json", ['{"query"', ': "x"}']), *block(1, result, "text", []), *END)
    assert reply.blocks == [{**use, "input": {"query": "x"}}, result]
    assert reply.tool_uses == []


def test_an_unknown_block_is_kept_whole_with_its_deltas_merged() -> None:
    start = {"type": "hologram", "data": "", "angles": [], "meta": {"a": 1}, "new": {"x": [1]}}
    deltas = [
        {"type": "h_delta", "data": "ab", "angles": [1], "meta": {"b": 2}, "level": 1},
        {"type": "h_delta", "data": "c", "angles": [2], "level": 2},
    ]
    reply = folded(
        START,
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "news", "of": "an event nobody knows"},
        *END,
    )
    merged = {"data": "abc", "angles": [1, 2], "meta": {"a": 1, "b": 2}, "level": 2}
    assert reply.blocks == [{**start, **merged}]


@pytest.mark.parametrize("text", ['{"city": "Os', "[1]", '"text"', "nonsense"])
def test_arguments_that_are_no_json_object_are_marked_and_replaced(text: str) -> None:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}
    reply = folded(START, *block(0, tool, "input_json", [text]), *END)
    assert reply.blocks == [tool]
    assert reply.bad_inputs == {"toolu_1": text}


def test_a_tool_use_without_arguments_has_none() -> None:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}
    reply = folded(START, *block(0, tool, "input_json", [""]), *END)
    assert (reply.blocks, reply.bad_inputs) == ([tool], {})


def test_duplicate_tool_use_ids_are_told() -> None:
    tool = {"type": "tool_use", "id": "same", "name": "t", "input": {}}
    assert folded(START, *block(0, tool, "text", []), *block(1, tool, "text", []), *END).duplicates == ("same",)


def test_everything_else_of_the_message_is_kept() -> None:
    stop = {"type": "refusal", "category": "bio", "explanation": None}
    reply = folded(
        START,
        {
            "type": "message_delta",
            "delta": {"stop_reason": "refusal", "stop_details": stop, "container": {"id": "c"}},
            "usage": {"output_tokens": 0},
            "context_management": {"applied_edits": []},
        },
        {"type": "message_stop"},
    )
    assert (reply.stop_reason, reply.stop_details, reply.container) == ("refusal", stop, {"id": "c"})
    assert reply.extra == {"context_management": {"applied_edits": []}}
    assert (reply.id, reply.model) == ("msg_1", "m")


TEXT = block(0, {"type": "text", "text": ""}, "text", ["a"])


@pytest.mark.parametrize(
    "events",
    [
        TEXT[1:],
        [START, *TEXT[1:]],
        [START, START],
        [START, *TEXT, *TEXT],
        [START, *TEXT, TEXT[1]],
        [START, *END, END[0]],
        [START, *END, START],
        [END[1]],
        [START, {"type": "content_block_start", "index": 0}],
        [START, TEXT[0], {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 1}}],
        [{"no": "type"}],
    ],
)
def test_events_out_of_order_or_shape_are_malformed(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelFailure) as caught:
        folded(*events)
    assert (caught.value.kind, caught.value.bought) == ("malformed", "unknown")


def test_a_reply_without_its_last_event_is_none() -> None:
    folding = ReplyFold()
    for event in [START, *TEXT, END[0]]:
        folding.feed(event)
    assert not folding.complete
    assert folding.usage["output_tokens"] == 7
    with pytest.raises(ModelFailure, match="ended before its last event"):
        folding.reply()


def test_what_was_fed_is_not_changed() -> None:
    before = json.dumps([START, *TEXT, *END])
    folded(START, *TEXT, *END)
    assert json.dumps([START, *TEXT, *END]) == before
