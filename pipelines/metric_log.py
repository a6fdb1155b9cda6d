"""Metrics on their way from the training loop to MLflow: each step of each once, whatever was killed when.

A checkpoint carries the metrics that it covers, and they are logged after it. A kill between the two loses
them from MLflow; a kill between logging and Ray Train's note of the checkpoint makes the next start repeat
steps that are logged already. MLflow keeps both points of a step, so a start asks what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.tracking import Tracker

MetricRow = tuple[int, int, dict[str, float]]


class MetricLog:
    """The metrics of one run; of several workers one is the writer, the others keep nothing.

    Attributes:
        pending: rows of (global step, ms since 1970, values by name) that wait for a checkpoint.
    """

    @staticmethod
    def silent() -> MetricLog:
        """One that keeps nothing, for a training whose figures are logged by somebody else."""
        return MetricLog(None, "", is_writer=False)

    def __init__(self, tracker: Tracker | None, run_id: str, *, is_writer: bool):
        self._tracker, self._run_id = tracker, run_id
        self._is_writer = is_writer and tracker is not None
        self._logged: dict[str, int] = {}
        self.pending: list[MetricRow] = []

    def carry_on(self, covered: Sequence[MetricRow]) -> None:
        """At the start: asks what is logged, and logs what the checkpoint covers and a kill held back."""
        if self._is_writer:
            assert self._tracker is not None
            self._logged = self._tracker.last_steps(self._run_id)
            self._log(covered)

    def keep(self, step: int, values: Mapping[str, float]) -> None:
        """Holds values of a step until a checkpoint covers them."""
        if self._is_writer:
            self.pending.append((step, Tracker.now_ms(), dict(values)))

    def flush(self) -> None:
        """Logs what waits; to be called once a checkpoint holds it."""
        if self._is_writer:
            self._log(self.pending)
            self.pending = []

    def _log(self, rows: Sequence[MetricRow]) -> None:
        assert self._tracker is not None
        fresh = [
            (step, time_ms, {name: value for name, value in values.items() if self._is_new(name, step)})
            for step, time_ms, values in rows
        ]
        self._tracker.log_metrics(self._run_id, fresh)

    def _is_new(self, name: str, step: int) -> bool:
        return step > self._logged.get(name, -1)
