"""Metrics for Prometheus, from the samples that streams show. A tenant is never a label: there may be thousands.

What the store says is a gauge, the same in every process that serves it. Counters are of this process alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.http.live.live import Sample
from holdfast.values import Quantiles
from holdfast.values.queues import QueueCounts

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_STATES = ("pending", "blocked", "running", "later")
_ENDED = ("succeeded", "failed", "cancelled")
_TOKENS = ("input", "output", "cache_write", "cache_read")


def exposition(sample: Sample, streams: int, counted: Mapping[str, int]) -> bytes:
    """A sample, and what this process has counted since it started, as Prometheus reads it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SampleCollector(sample, streams, counted))
    return generate_latest(registry)


class _SampleCollector(Collector):
    def __init__(self, sample: Sample, streams: int, counted: Mapping[str, int]) -> None:
        self._sample = sample
        self._streams = streams
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        yield from queue_metrics(self._sample.queues, self._sample.oldest_pending)
        yield from time_metrics(self._sample)
        yield from agent_metrics(self._sample)
        yield from lane_metrics(self._sample)
        for name, about, value in (
            ("holdfast_workers", "Live workers.", self._sample.workers),
            ("holdfast_worker_slots", "Jobs that the live workers can run at once.", self._sample.slots),
            ("holdfast_worker_active", "Jobs that the live workers run.", self._sample.active),
            ("holdfast_inquiries_open", "Inquiries that wait for a person.", self._sample.inquiries),
            ("holdfast_leases_lapsed", "Leases that ended and nobody has noticed.", self._sample.lapsed_leases),
            ("holdfast_streams_open", "Streams that this process has open.", self._streams),
        ):
            yield GaugeMetricFamily(name, about, value=float(value))
        yield from process_metrics(self._counted)


def queue_metrics(queues: list[QueueCounts], oldest: dict[str, float]) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "holdfast_jobs", "Jobs by queue and state; counts stop at 10,000.", labels=["queue", "state"]
    )
    ended = GaugeMetricFamily(
        "holdfast_jobs_ended_last_minute", "Jobs that ended in the last minute.", labels=["queue", "state"]
    )
    paused = GaugeMetricFamily("holdfast_queue_paused", "1 for a queue that is paused.", labels=["queue"])
    age = GaugeMetricFamily(
        "holdfast_oldest_pending_seconds", "For how long the oldest job has waited for a worker.", labels=["queue"]
    )
    for queue in queues:
        for state in _STATES:
            depth.add_metric([queue.name, state], float(getattr(queue, state)))
        for state in _ENDED:
            ended.add_metric([queue.name, state], float(getattr(queue, state)))
        paused.add_metric([queue.name], float(queue.paused_at is not None))
        age.add_metric([queue.name], oldest.get(queue.name, 0.0))
    yield from (depth, ended, paused, age)


def time_metrics(sample: Sample) -> Iterator[Metric]:
    """Of the last 1,000 jobs of each queue, and of the last 1,000 turns, that ended in the last minute."""
    for name, about, label, times in (
        ("holdfast_job_wait_seconds", "From enqueuing to the first claim.", "queue", sample.wait_seconds),
        ("holdfast_job_duration_seconds", "The attempts that ended jobs.", "queue", sample.duration_seconds),
        ("holdfast_turn_duration_seconds", "Turns that were streamed.", "model", sample.turn_seconds),
    ):
        yield _quantiles(name, about, label, times)


def _quantiles(name: str, about: str, label: str, times: Mapping[str, Quantiles]) -> Metric:
    family = GaugeMetricFamily(name, f"{about} Quantiles of the last minute.", labels=[label, "quantile"])
    for key, found in times.items():
        for quantile, seconds in found.items():
            family.add_metric([key, quantile], seconds)
    return family


def agent_metrics(sample: Sample) -> Iterator[Metric]:
    parts = {
        "open": GaugeMetricFamily("holdfast_runs_open", "Runs that have not ended.", labels=["agent"]),
        "asking": GaugeMetricFamily("holdfast_runs_asking", "Runs that wait for a person.", labels=["agent"]),
        "ended": GaugeMetricFamily("holdfast_runs_ended_last_minute", "Runs that ended.", labels=["agent"]),
        "failed": GaugeMetricFamily("holdfast_runs_failed_last_minute", "Runs that failed.", labels=["agent"]),
        "turns": GaugeMetricFamily("holdfast_turns_last_minute", "Turns that ended.", labels=["agent"]),
        "cost": GaugeMetricFamily("holdfast_cost_usd_last_minute", "What they cost, in USD.", labels=["agent"]),
    }
    tokens = GaugeMetricFamily("holdfast_tokens_last_minute", "Tokens they used.", labels=["agent", "kind"])
    for agent in sample.agents:
        for name, metric in parts.items():
            metric.add_metric([agent.agent], float(getattr(agent, name)))
        for kind in _TOKENS:
            tokens.add_metric([agent.agent, kind], float(getattr(agent, f"{kind}_tokens")))
    yield from (*parts.values(), tokens)


def lane_metrics(sample: Sample) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "holdfast_lanes_closed", "Lanes to model providers that are closed.", value=float(sample.closed_lanes)
    )
    behind = GaugeMetricFamily("holdfast_lane_waiting", "Runs that wait behind a closed lane.", labels=["lane"])
    for name, waiting in sample.waiting_behind.items():
        behind.add_metric([name], float(waiting))
    yield behind


def process_metrics(counted: Mapping[str, int]) -> Iterator[Metric]:
    for name, about, event in (
        ("holdfast_leases_expired", "Jobs that workers of this process took back from lost leases.", "job.rescued"),
        ("holdfast_stale_writes_refused", "Attempts of this process that had lost their lease.", "job.lost"),
    ):
        yield CounterMetricFamily(name, about, value=float(counted.get(event, 0)))
