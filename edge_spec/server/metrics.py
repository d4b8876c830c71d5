"""Counters for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edge_spec.memory import Ledger
from edge_spec.server.models import Models
from edge_spec.server.work_queue import WorkQueue
from edge_spec.speculation.statistics import Statistics

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of requests and tokens since the start, and gauges of memory and queue."""

    def __init__(self, queue: WorkQueue, models: Models, ledger: Ledger) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Now(queue, models, ledger))

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
    """Gauges of the models and of the queue.

    Args:
        ledger: of the whole budget.
    """

    def __init__(self, queue: WorkQueue, models: Models, ledger: Ledger) -> None:
        self._queue = queue
        self._models = models
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("edge_spec_requests_waiting", "Requests that wait.", self._queue.n_waiting)
        yield GaugeMetricFamily("edge_spec_requests_writing", "Requests being answered.", self._queue.n_answered)
        memory = self._gauge("memory_bytes", "Memory by owner and use.", "owner", "name")
        cells = self._gauge("cells", "Cells of the KV cache, by state.", "state")
        evicted = self._counter("cells_evicted", "Cells evicted for others.")
        texts = self._gauge("texts", "Replies being written.")
        rows = self._counter("rows", "Rows of the target, by purpose.", "purpose")
        for served in self._models.open:
            if (model := served.model) is None:
                continue
            name = [served.name] if self._models.are_several else []
            _add_lines(memory, name, model.ledger)
            for state, n_cells in model.cells.items():
                cells.add_metric([*name, state], n_cells)
            evicted.add_metric(name, model.evicted_cells)
            texts.add_metric(name, model.live_texts)
            for purpose, n_rows in model.rows.items():
                rows.add_metric([*name, purpose], n_rows)
        if self._models.are_several:
            _add_lines(memory, [""], self._ledger)
            yield from self._openings()
        yield from (memory, cells, evicted, texts, rows)
        if self._ledger.budget_bytes is not None:
            yield GaugeMetricFamily("edge_spec_memory_budget_bytes", "The memory budget.", self._ledger.budget_bytes)

    def _openings(self) -> Iterator[Metric]:
        """Yield what several models take, and how often they were opened and closed."""
        held = self._gauge("model_bytes", "What an open model takes of the memory budget.")
        loads = self._counter("model_loads", "How often a model was opened.")
        for served in self._models.all:
            loads.add_metric([served.name], served.n_loads)
            if (model := served.model) is not None:
                held.add_metric([served.name], model.ledger.share_bytes)
        closed = CounterMetricFamily("edge_spec_models_closed", "Models closed, by reason.", labels=("reason",))
        for reason, n in self._models.n_closed.items():
            closed.add_metric([reason], n)
        yield from (held, loads, closed)

    def _gauge(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"edge_spec_{name}", text, labels=self._labels(labels))

    def _counter(self, name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"edge_spec_{name}", text, labels=self._labels(labels))

    def _labels(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        return ("model", *labels) if self._models.are_several else labels


def _add_lines(memory: GaugeMetricFamily, name: list[str], ledger: Ledger) -> None:
    for line in ledger:
        n_bytes = line.predicted_bytes if line.measured_bytes is None else line.measured_bytes
        memory.add_metric([*name, line.owner, line.name], n_bytes)
