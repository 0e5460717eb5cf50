"""Spans of agents as a collector receives them: parents, links, names, attributes, and nothing that was said."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas

from holdfast import Agent, Holdfast
from holdfast.errors import RunFailed
from holdfast.models.script import Script, call, reject, say
from holdfast.telemetry import instrument, spans
from tests.support.apps import MakeApp, working

PROMPT, WORD, ANSWER = "Tell me of a walrus", "pinniped", "It has tusks"


class Collector:
    """An OTLP receiver on loopback."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.schemas: set[str] = set()
        self.bodies: list[bytes] = []
        spans = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                spans.receive(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def receive(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.schemas.add(scope.schema_url)
                self.spans += scope.spans

    def trace(self, *apps: Holdfast, contents: bool = False) -> None:
        """Have these apps send their spans here, each as if it were a process of its own."""
        for app in apps:
            tracers = TracerProvider(shutdown_on_exit=False)
            url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
            tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=url)))
            instrument(app, tracer_provider=tracers, contents=contents)

    def named(self, name: str) -> list[Span]:
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_time_unix_nano)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield collector
    collector.server.shutdown()
    thread.join()
    collector.server.server_close()


def told(span: Span) -> dict[str, Any]:
    kinds = {"string_value", "int_value"}
    values = {each.key: each.value for each in span.attributes}
    plain = {key: getattr(value, kind) for key, value in values.items() if (kind := value.WhichOneof("value")) in kinds}
    lists = {
        key: [each.string_value for each in value.array_value.values]
        for key, value in values.items()
        if value.WhichOneof("value") == "array_value"
    }
    return plain | lists


def inside(inner: Span, outer: Span) -> bool:
    return (inner.trace_id, inner.parent_span_id) == (outer.trace_id, outer.span_id)


def linked(span: Span, origin: Span) -> bool:
    return [(each.trace_id, each.span_id) for each in span.links] == [(origin.trace_id, origin.span_id)]


def walker(app: Holdfast) -> Agent[str]:
    @app.tool
    async def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word}: found"

    app.script("walk", Script(call("look_up", word=WORD), say(ANSWER)))
    return app.agent("walker", model="scripted:walk", instructions="Be terse about animals", tools=[look_up])


async def test_a_run_is_traced_over_its_turns_and_its_call(make_app: MakeApp, collector: Collector) -> None:
    here, there = make_app(embedded=False), make_app(embedded=False)
    collector.trace(here, there)
    walker(there)
    run = await walker(here).enqueue(PROMPT)
    async with working(there):
        result = await run.result()

    (send,) = collector.named("send agent:walker")
    processed, invoked = collector.named("process agent:walker"), collector.named("invoke_agent walker")
    chats = collector.named("chat scripted:walk")
    (tool,), (job,) = collector.named("execute_tool look_up"), collector.named("process tool:look_up")
    assert [len(invoked), len(chats)] == [2, 2]
    for process, invoke, chat in zip(processed, invoked, chats, strict=True):
        assert linked(process, send)
        assert process.parent_span_id == b""
        assert inside(invoke, process)
        assert inside(chat, invoke)
        assert (invoke.kind, chat.kind) == (Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_CLIENT)
    assert linked(job, invoked[0])
    assert inside(tool, job)
    assert len({span.trace_id for span in (send, *processed, job)}) == 4

    record = await here.runs.get(run.id)
    of_run = {"gen_ai.conversation.id": record.session, "holdfast.run": run.id, "gen_ai.agent.name": "walker"}
    model = {"gen_ai.provider.name": "scripted", "gen_ai.request.model": "scripted:walk"}
    for invoke in invoked:
        own = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": record.agent, "gen_ai.agent.version": "1"}
        assert (own | of_run | model).items() <= told(invoke).items()
    for chat, stop in zip(chats, ("tool_use", "end_turn"), strict=True):
        own = {"gen_ai.operation.name": "chat", "gen_ai.response.model": "scripted:walk"}
        assert (own | of_run | model).items() <= told(chat).items()
        assert told(chat)["gen_ai.response.finish_reasons"] == [stop]
        assert told(chat)["gen_ai.response.id"]
    called = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look_up", "gen_ai.tool.type": "function"}
    assert (called | of_run).items() <= told(tool).items()
    (asked,) = await run.calls()
    assert told(tool)["gen_ai.tool.call.id"] == asked.tool_use_id
    for kind in ("input", "output"):
        key = f"gen_ai.usage.{kind}_tokens"
        used = sum(told(chat)[key] for chat in chats)
        assert sum(told(invoke)[key] for invoke in invoked) == used
        assert used == getattr(result.usage, f"{kind}_tokens")
    assert collector.schemas == {"", spans.SCHEMA}
    for words in (PROMPT, WORD, ANSWER, "terse", "found"):
        assert not [body for body in collector.bodies if words.encode() in body], words


async def test_what_is_said_is_in_the_spans_of_who_asks_for_it(make_app: MakeApp, collector: Collector) -> None:
    app = make_app(embedded=False)
    collector.trace(app, contents=True)
    run = await walker(app).enqueue(f"{PROMPT}, sk-ant-REDACTED-0123456789abcdef")
    async with working(app):
        await run.result()
    first, second = (told(chat) for chat in collector.named("chat scripted:walk"))
    assert json.loads(first["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be terse about animals"}]
    text = f"{PROMPT}, [redacted]"
    asked = {"role": "user", "parts": [{"type": "text", "content": text}]}
    assert json.loads(first["gen_ai.input.messages"]) == [asked]
    said = json.loads(first["gen_ai.output.messages"])[0]
    (part,) = said["parts"]
    assert (part["type"], part["name"], part["arguments"]) == ("tool_call", "look_up", {"word": WORD})
    answered = json.loads(second["gen_ai.input.messages"])[2]["parts"][0]
    assert (answered["type"], answered["id"]) == ("tool_call_response", part["id"])
    assert json.loads(second["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": ANSWER}]
    (tool,) = map(told, collector.named("execute_tool look_up"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"word": WORD}
    assert "found" in tool["gen_ai.tool.call.result"]


async def test_failures_are_the_status_of_their_spans(make_app: MakeApp, collector: Collector) -> None:
    app = make_app(embedded=False)
    collector.trace(app)

    @app.tool(effect="once")
    async def break_down(word: str) -> str:
        """Break."""
        raise ConnectionError("no line")

    app.script("sad", Script(call("break_down", word=WORD), reject("too odd")))
    run = await app.agent("sad", model="scripted:sad", tools=[break_down]).enqueue(PROMPT)
    async with working(app):
        with pytest.raises(RunFailed):
            await run.result()
    (tool,) = collector.named("execute_tool break_down")
    assert (tool.status.code, "no line" in tool.status.message) == (Status.STATUS_CODE_ERROR, True)
    good, bad = collector.named("chat scripted:sad")
    assert good.status.code == Status.STATUS_CODE_UNSET
    assert (bad.status.code, told(bad)["error.type"]) == (Status.STATUS_CODE_ERROR, "bad_request")
    last = collector.named("invoke_agent sad")[-1]
    assert last.status.code == Status.STATUS_CODE_ERROR


def test_the_names_are_those_of_one_version() -> None:
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    ours = {value for value in vars(spans).values() if isinstance(value, str) and value.startswith("gen_ai.")}
    assert ours
    assert ours <= known
    assert spans.SCHEMA in {schema.value for schema in Schemas}
