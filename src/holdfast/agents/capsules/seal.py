"""The seal: a capsule's rows without their secrets. Pure.

What a model said piece by piece is looked at as a whole: a secret may begin in one event and end in the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from holdfast.agents.capsules.capsule_rows import KeptCall, KeptEvent, KeptInquiry, KeptJob, KeptMessage, KeptRun
from holdfast.agents.capsules.capsules import Contents
from holdfast.agents.forks.fork import EDITED
from holdfast.agents.rows import BlockRow
from holdfast.kernel import codec
from holdfast.redaction import Redactor

_DELTAS = ("text_delta", "thinking_delta", "input_delta")


def sealed(contents: Contents, redactor: Redactor) -> Contents:
    """The same without secrets. Thinking after a message that was changed is not valid any more, and marked so."""
    blocks = [block._replace(body=redactor.json(block.body)) for block in contents.blocks]
    versions = [each._replace(definition=_definition(each.definition, redactor)) for each in contents.versions]
    asked = blocks != contents.blocks or versions != contents.versions  # for other things than were asked for then
    session = contents.session
    return contents._replace(
        agents=[
            agent._replace(description=redactor.text(agent.description), metadata=redactor.json(agent.metadata, "all"))
            for agent in contents.agents
        ],
        versions=versions,
        session=session._replace(key=redactor.maybe(session.key), metadata=redactor.json(session.metadata, "all")),
        runs=[_run(run, redactor) for run in contents.runs],
        messages=_marked(contents.messages, _changed(contents.blocks, blocks)),
        blocks=blocks,
        turns=[
            turn._replace(error=redactor.maybe_json(turn.error), request_hash="" if asked else turn.request_hash)
            for turn in contents.turns
        ],
        calls=[_call(call, redactor) for call in contents.calls],
        events=_events(contents.events, redactor),
        inquiries=[_inquiry(inquiry, redactor) for inquiry in contents.inquiries],
        steers=[steer._replace(body=redactor.json(steer.body)) for steer in contents.steers],
        jobs=[_job(job, redactor) for job in contents.jobs],
    )


def without_traces(contents: Contents) -> Contents:
    """The same without tracebacks, which name files of the program and have lines of them."""
    return contents._replace(
        calls=[call._replace(output=_traceless(call.output)) if call.is_error else call for call in contents.calls],
        jobs=[job._replace(error=_traceless(job.error)) for job in contents.jobs],
    )


def _traceless(text: str | None) -> str | None:
    told = None if text is None else codec.decode(text)
    if not isinstance(told, dict) or "trace" not in told:
        return text
    return _json({name: value for name, value in told.items() if name != "trace"})


def _definition(text: str, redactor: Redactor) -> str:
    """What is sent to the provider goes by its names; a tool's schema only describes what has such a name."""
    plain = codec.decode(redactor.json(text))
    sent = {name: plain[name] for name in ("options", "server_tools") if plain.get(name)}
    left = {name: codec.decode(redactor.json(_json(value), "all")) for name, value in sent.items()}
    redacted = {**plain, **left}
    return text if redacted == codec.decode(text) else _json(redacted)


def _run(run: KeptRun, redactor: Redactor) -> KeptRun:
    return run._replace(
        input=redactor.json(run.input),
        variables=redactor.json(run.variables, "all"),
        metadata=redactor.json(run.metadata, "all"),
        options=redactor.json(run.options, "all"),
        output=redactor.maybe_json(run.output, "arguments"),
        refusal=redactor.maybe_json(run.refusal),
        limited=redactor.maybe(run.limited),
        error_text=redactor.maybe(run.error_text),
    )


def _call(call: KeptCall, redactor: Redactor) -> KeptCall:
    return call._replace(input=redactor.json(call.input, "arguments"), output=redactor.maybe_json(call.output))


def _inquiry(inquiry: KeptInquiry, redactor: Redactor) -> KeptInquiry:
    return inquiry._replace(
        data=redactor.json(inquiry.data),
        otherwise=redactor.maybe_json(inquiry.otherwise),
        decision=redactor.maybe_json(inquiry.decision),
    )


def _job(job: KeptJob, redactor: Redactor) -> KeptJob:
    return job._replace(
        payload=redactor.json(job.payload, "arguments"),
        metadata=redactor.json(job.metadata, "all"),
        result=redactor.maybe_json(job.result, "arguments"),
        error=redactor.maybe_json(job.error),
    )


def _changed(before: Sequence[BlockRow], after: Sequence[BlockRow]) -> set[str]:
    return {new.message for old, new in zip(before, after, strict=True) if old.body != new.body}


def _marked(messages: Sequence[KeptMessage], changed: set[str]) -> list[KeptMessage]:
    marked: list[KeptMessage] = []
    for _, branch in groupby(messages, key=lambda message: message.branch):
        stale = False
        for message in branch:
            stale = stale or message.id in changed
            marked.append(message._replace(fingerprint=EDITED) if stale and message.kind == "answer" else message)
    return marked


def _events(events: Sequence[KeptEvent], redactor: Redactor) -> list[KeptEvent]:
    said: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    read = [(event, codec.decode(event.data)) for event in events]
    for event, data in read:
        if event.type in _DELTAS:
            said[_block_of(event, data)].append(data)
    whole = {block: _without(pieces, block[1], redactor) for block, pieces in said.items()}
    kept: list[KeptEvent] = []
    for event, data in read:
        if event.type not in _DELTAS:
            kept.append(event._replace(data=redactor.json(event.data)))
            continue
        pieces = whole[_block_of(event, data)]
        kept.append(event if pieces is None else event._replace(data=_json({**data, **pieces.pop(0)})))
    return kept


def _block_of(event: KeptEvent, data: dict[str, Any]) -> tuple[Any, ...]:
    return event.run, event.type, data.get("turn"), data.get("index")


def _without(pieces: Sequence[dict[str, Any]], type: str, redactor: Redactor) -> list[dict[str, Any]] | None:
    """The pieces of a block, all that is left of it in the first; None when there was nothing to take out."""
    text = "".join(str(piece.get("text", "")) for piece in pieces)
    left = _redacted(text, type, redactor)
    if left == text:
        return None
    return [{"offset": 0, "text": left}, *({"offset": len(left), "text": ""} for _ in pieces[1:])]


def _redacted(text: str, type: str, redactor: Redactor) -> str:
    if type != "input_delta":
        return redactor.text(text)
    try:
        return redactor.json(text, "arguments")
    except ValueError:  # it was cut off, or begun again
        return redactor.text(text)


def _json(value: Any) -> str:
    return codec.encode(value, what="an event", cap=1 << 28)
