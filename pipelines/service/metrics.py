"""Prometheus metrics of the gateway, which sees every request."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServiceMetrics:
    """Counts, latencies and the live version, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "tsdae_requests", "Answered requests.", ["route", "status"], registry=self._registry
        )
        self.latency = Histogram(
            "tsdae_request_seconds",
            "Time from reading a request to its answer.",
            ["route"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self.in_work = Gauge(
            "tsdae_requests_in_work", "Requests at work or waiting.", registry=self._registry
        )
        self.turned_away = Counter(
            "tsdae_requests_turned_away", "Requests answered 429.", registry=self._registry
        )
        self._live = Info(
            "tsdae_live",
            "What answered last: version, fingerprint and registry version of the encoder, index.",
            registry=self._registry,
        )

    def set_live(self, labels: Mapping[str, str]) -> None:
        """Remembers what answered."""
        self._live.info(dict(labels))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)
