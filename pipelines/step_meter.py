"""What a train worker measures between two log lines, and how it is told to a person.

Sums are added over the workers when a line is due. Knows nothing of MLflow or of the model.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pipelines.parallel import Parallel
from pipelines.stream import StepBatch, num_tokens
from tsdae_core.batch import Batch

_MIB = 2**20
# Waiting for less than this share of the time is not worth a change.
_STARVED_SHARE = 0.1


@dataclass
class StepMeter:
    """Sums since the last line, of this worker.

    padded: whether the model pads a micro-batch to its longest text (the general path).
    """

    padded: bool
    loss_sum: float = 0.0
    num_targets: int = 0
    num_tokens: int = 0
    num_positions: int = 0
    num_sentences: int = 0
    num_steps: int = 0
    wait_s: float = 0.0
    tokens_waiting: int = 0
    grad_norm: float = 0.0
    started_s: float = field(default_factory=time.monotonic)

    def add(self, step: StepBatch, *, loss_sum: float, num_targets: int, grad_norm: float) -> None:
        """Counts one finished step."""
        self.loss_sum += loss_sum
        self.num_targets += num_targets
        for batch in step.micro_batches:
            self.num_tokens += num_tokens(batch)
            self.num_positions += num_positions(batch) if self.padded else num_tokens(batch)
        self.num_sentences += len(step.row_ids)
        self.num_steps += 1
        self.grad_norm = grad_norm

    def fed(self, *, wait_s: float, tokens_waiting: int) -> None:
        """Counts the time for which a batch was waited for, and the tokens that were ready then."""
        self.wait_s += wait_s
        self.tokens_waiting += tokens_waiting

    @property
    def loss_and_targets(self) -> tuple[float, int]:
        """What a resumed run has to know of an open window."""
        return self.loss_sum, self.num_targets

    def carry_on(self, window: Sequence[tuple[float, int]], *, rank: int, world_size: int) -> None:
        """Takes over an interrupted run's sums, each worker its own unless their number has changed."""
        if len(window) == world_size:
            self.loss_sum, self.num_targets = window[rank]
        elif rank == 0:
            self.loss_sum, self.num_targets = sum(loss for loss, _ in window), sum(n for _, n in window)

    def restart_clock(self) -> None:
        """Begins to count time now."""
        self.started_s = time.monotonic()

    def skip(self, seconds: float) -> None:
        """Leaves out time that was not spent on training."""
        self.started_s += seconds

    def summed(self, parallel: Parallel) -> Measured:
        """What all workers measured; to be called by each of them."""
        elapsed_s = max(time.monotonic() - self.started_s, 1e-9)
        loss_sum, targets, tokens, positions, sentences, wait_s, waiting = parallel.sum(
            self.loss_sum,
            self.num_targets,
            self.num_tokens,
            self.num_positions,
            self.num_sentences,
            self.wait_s,
            self.tokens_waiting / max(1, self.num_steps),
        )
        return Measured(
            loss=loss_sum / max(1.0, targets),
            tokens_per_s=tokens / elapsed_s,
            sentences_per_s=sentences / elapsed_s,
            target_token_share=targets / max(1.0, tokens),
            padding_share=1 - tokens / max(1.0, positions),
            starved_share=min(1.0, wait_s / parallel.world_size / elapsed_s),
            tokens_waiting=waiting / parallel.world_size,
            grad_norm=self.grad_norm,
            memory_mib=parallel.gather(peak_memory_mib()),
            gpu_memory_mib=parallel.gather(gpu_peak_memory_mib(parallel.device)),
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What all workers measured since the last line; shares are of 1, memory is the peak per worker."""

    loss: float
    tokens_per_s: float
    sentences_per_s: float
    target_token_share: float
    padding_share: float
    starved_share: float
    tokens_waiting: float
    grad_norm: float
    memory_mib: Sequence[float]
    gpu_memory_mib: Sequence[float]

    def metrics(self, *, loss_name: str, rate: float) -> dict[str, float]:
        """Values by name for a tracker; units are in the names."""
        values = {
            f"train_loss_{loss_name}": self.loss,
            "learning_rate": rate,
            "gradient_norm": self.grad_norm,
            "tokens_per_s": self.tokens_per_s,
            "sentences_per_s": self.sentences_per_s,
            "padding_share": self.padding_share,
            "starved_share": self.starved_share,
            "tokens_waiting_per_worker": self.tokens_waiting,
            "worker_peak_memory_mib": max(self.memory_mib),
        }
        if loss_name == "nats_per_token":
            values["target_token_share"] = self.target_token_share
        if any(self.gpu_memory_mib):
            values["gpu_peak_memory_mib"] = max(self.gpu_memory_mib)
        return values

    def note(self) -> str:
        """The same for a line of progress."""
        parts = [
            f"loss {self.loss:.3f}",
            f"{self.tokens_per_s:,.0f} tokens/s",
            f"padding {self.padding_share:.0%}",
            f"waiting for data {self.starved_share:.0%} ({self.tokens_waiting:,.0f} tokens ready)",
            f"memory {_spread(self.memory_mib)} per worker",
        ]
        if any(self.gpu_memory_mib):
            parts.append(f"GPU memory {_spread(self.gpu_memory_mib)}")
        return ", ".join(parts)


@dataclass
class Feeding:
    """How long this worker has waited for batches in the whole run."""

    first_batch_s: float = 0.0
    wait_s: float = 0.0
    elapsed_s: float = 0.0

    def add(self, meter: StepMeter) -> None:
        """Counts what a meter has measured until now."""
        self.wait_s += meter.wait_s
        self.elapsed_s += time.monotonic() - meter.started_s

    def told(self) -> str:
        """One sentence on which side is the slower one; nothing before anything is measured."""
        if not self.elapsed_s:
            return ""
        share = min(1.0, self.wait_s / self.elapsed_s)
        waited = (
            f"the first batch came after {self.first_batch_s:.0f} s; "
            f"after that, {share:.0%} of the time was waiting for batches"
        )
        if share < _STARVED_SHARE:
            return f"{waited}: training is the slower side, feeding keeps up"
        return (
            f"{waited}: feeding is the slower side; give the cluster more CPUs beside the train workers, "
            "or use fewer of those"
        )


def num_positions(batch: Batch) -> int:
    """Positions that a model computes for a batch which it pads to the longest text."""
    lengths = [values for key, values in batch.items() if key.endswith("lengths") and len(values)]
    return int(sum(len(values) * int(np.max(values)) for values in lengths))


def peak_memory_mib() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gpu_peak_memory_mib(device: torch.device) -> float:
    """The most memory that tensors have held on a GPU so far; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) / _MIB if device.type == "cuda" else 0.0


def _spread(mib: Sequence[float]) -> str:
    low, high = min(mib) / 1024, max(mib) / 1024
    return f"{high:.1f} GiB" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f}-{high:.1f} GiB"
