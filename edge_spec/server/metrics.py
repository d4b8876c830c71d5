"""Counters for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge_spec.model import TextModel
from edge_spec.server.work_queue import WorkQueue
from edge_spec.speculation.statistics import Statistics

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of requests and tokens since the start, and gauges of memory and queue."""

    def __init__(self, queue: WorkQueue, model: TextModel) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Now(queue, model))

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"edge_spec_{name}", text, labels, registry=registry)

        self._requests = counter("requests", "Requests by endpoint and HTTP status.", ("endpoint", "status"))
        self._counts: list[tuple[Counter, Callable[[Statistics], float]]] = [
            (counter("prompt_tokens", "Tokens of prompts."), lambda done: done.prompt_tokens),
            (counter("completion_tokens", "Tokens written."), lambda done: done.tokens),
            (counter("drafted_tokens", "Tokens drafted."), lambda done: done.drafted),
            (counter("accepted_tokens", "Drafted tokens that became text."), lambda done: done.accepted),
            (counter("rounds", "Decodes of the target."), lambda done: done.rounds),
            (counter("prompt_seconds", "Seconds spent reading prompts."), lambda done: done.prefill_s),
            (counter("completion_seconds", "Seconds spent writing."), lambda done: done.decode_s),
        ]

    def asked(self, endpoint: str, status: int) -> None:
        """Count a request that was answered."""
        self._requests.labels(endpoint, str(status)).inc()

    def wrote(self, done: Statistics) -> None:
        """Count a reply that has ended."""
        for counter, value in self._counts:
            counter.inc(value(done))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Now(Collector):
    """Gauges of the model and of the queue."""

    def __init__(self, queue: WorkQueue, model: TextModel) -> None:
        self._queue = queue
        self._model = model
        self._ledger = model.ledger

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("edge_spec_requests_waiting", "Requests that wait.", self._queue.n_waiting)
        yield GaugeMetricFamily("edge_spec_requests_writing", "Requests being answered.", self._queue.n_answered)
        memory = GaugeMetricFamily("edge_spec_memory_bytes", "Memory by owner and use.", labels=("owner", "name"))
        for line in self._ledger:
            n_bytes = line.predicted_bytes if line.measured_bytes is None else line.measured_bytes
            memory.add_metric([line.owner, line.name], n_bytes)
        yield memory
        cells = GaugeMetricFamily("edge_spec_cells", "Cells of the KV cache, by state.", labels=("state",))
        for state, n_cells in self._model.cells.items():
            cells.add_metric([state], n_cells)
        yield cells
        yield CounterMetricFamily("edge_spec_cells_evicted", "Cells evicted for others.", self._model.evicted_cells)
        yield GaugeMetricFamily("edge_spec_texts", "Replies being written.", self._model.live_texts)
        rows = CounterMetricFamily("edge_spec_rows", "Rows of the target, by purpose.", labels=("purpose",))
        for purpose, n_rows in self._model.rows.items():
            rows.add_metric([purpose], n_rows)
        yield rows
        if self._ledger.budget_bytes is not None:
            yield GaugeMetricFamily("edge_spec_memory_budget_bytes", "The memory budget.", self._ledger.budget_bytes)
