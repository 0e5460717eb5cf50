"""OpenTelemetry: spans and metrics of jobs, and spans of agents, for an app that you `instrument`.

An enqueue is a producer span and every attempt a consumer span in a trace of its own, linked to the enqueue: a job may
run much later, more than once, and in another process. Runs, model calls and tools have their spans inside those.
"""

from __future__ import annotations

from holdfast.app import Holdfast, core_of
from holdfast.errors import VERSION, MissingExtra, UsageError

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from holdfast.telemetry.spans import SCHEMA, AgentSpans, AppSpans, JobMetrics
except ModuleNotFoundError as missing:
    raise MissingExtra("otel", "holdfast.telemetry") from missing

__all__ = ["instrument"]

_NAME = "holdfast"


def instrument(
    app: Holdfast,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    contents: bool = False,
) -> None:
    """Trace and measure an app with OpenTelemetry, by these providers or by those of the process.

    Call it once, in every process that enqueues or works. `contents` puts into the spans what models and tools are told
    and answer; secrets are taken out of it. It needs the extra `otel`.
    """
    bus = core_of(app).ports.events
    if bus.spans is not None:
        raise UsageError("this app is already instrumented; call instrument() only once.")
    of_agents = trace.get_tracer(_NAME, VERSION, tracer_provider, schema_url=SCHEMA)
    spans = AgentSpans(of_agents, contents=contents)
    bus.spans = AppSpans(trace.get_tracer(_NAME, VERSION, tracer_provider), spans)
    bus.listen(JobMetrics(metrics.get_meter(_NAME, VERSION, meter_provider)).note)
