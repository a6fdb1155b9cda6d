"""What a train worker is given, and what a run remembers through restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any

from pipelines.config import RunConfig
from pipelines.lanes import LanePlan
from pipelines.manifest import Manifest
from pipelines.storage import Location
from pipelines.task_source import TaskSource
from pipelines.token_shards import TokenRows
from pipelines.tracking import Tracker
from pipelines.train_config import TrainConfig
from pipelines.validation_task import validation_source
from tsdae_core.objective import Objective, build_objective

STATE_FOLDER = "state"
ENCODER_FOLDER = "encoder"
BEST_FOLDER = "best"
LOG_NAME = "training_log.json"
MASK64 = 2**64 - 1
_MAX_WINDOWS = 1_000

Curve = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything a training is a function of; picklable.

    workspace: has `start/` and `tokens/`.
    storage: where this run's checkpoints are kept.
    validation: the task of early_stopping, if there is one.
    """

    config: TrainConfig
    seed: int
    workspace: Location
    storage: Location
    tokens: Manifest
    plan: LanePlan
    objective: Objective
    validation: TaskSource | None

    @staticmethod
    def of(config: RunConfig, workspace: Location, tokens: Manifest, *, storage: Location) -> Training:
        """The training that a configuration asks for, on a workspace's finished `start/` and `tokens/`."""
        from tsdae_core.encoder import SentenceEncoder

        with (workspace / "start").as_local_folder() as folder:
            tokenizer = SentenceEncoder.load(str(folder)).tokenizer
        train = config.train
        num_rows = TokenRows.open(workspace, tokens).num_rows
        plan = LanePlan(
            num_rows=min(num_rows, train.max_rows or num_rows),
            batch_size=train.batch_size,
            num_lanes=train.lanes,
            seed=config.seed,
        )
        if train.num_epochs:
            train = replace(train, num_steps=min(train.num_steps, train.num_epochs * plan.steps_per_epoch))
        return Training(
            config=train,
            seed=config.seed,
            workspace=workspace,
            storage=storage,
            tokens=tokens,
            plan=plan,
            objective=build_objective(train.objective, tokenizer=tokenizer, config=train.chosen),
            validation=validation_source(train.early_stopping.task),
        )


@dataclass(frozen=True, kw_only=True)
class TrainJob(Training):
    """Everything a worker of Ray Train needs; picklable."""

    tracker: Tracker
    run_id: str
    board: Any


@dataclass
class History:
    """What a run remembers; kept in the checkpoint, so that a resumed run repeats it exactly.

    Curves are (finished steps, value) pairs. It holds no time and nothing of the machine.
    stream_digest: of the rows of all steps so far (`lanes.step_digest`), mod 2^64.
    stream_digests: the same for every `digest_window` steps alone, in order.
    open_window: loss sum and number of targets since the last point of `losses`, by worker.
    """

    losses: Curve = field(default_factory=list)
    validation_losses: Curve = field(default_factory=list)
    retrieval_mrrs: Curve = field(default_factory=list)
    task_scores: Curve = field(default_factory=list)
    stream_digest: int = 0
    stream_digests: list[int] = field(default_factory=list)
    num_sentences: int = 0
    num_target_tokens: int = 0
    open_window: list[tuple[float, int]] = field(default_factory=list)

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> History:
        """Back from the JSON of a checkpoint; one from before `stream_digests` has none of past steps."""
        curves = {
            name: [(int(step), float(value)) for step, value in plain[name]]
            for name in ("losses", "validation_losses", "retrieval_mrrs", "task_scores")
        }
        window = [(float(loss), int(targets)) for loss, targets in plain["open_window"]]
        return History(**{**plain, **curves, "open_window": window})

    def without_sums(self) -> History:
        """The curves alone."""
        return replace(self, stream_digest=0, stream_digests=[], num_sentences=0, num_target_tokens=0)

    def count_rows(self, digest: int, *, step: int, num_steps: int) -> None:
        """Takes in the digest of the rows that this worker used in a step of a run of `num_steps`."""
        window = step // digest_window(num_steps)
        self.stream_digests += [0] * (window + 1 - len(self.stream_digests))
        self.stream_digests[window] = (self.stream_digests[window] + digest) & MASK64
        self.stream_digest = (self.stream_digest + digest) & MASK64

    def with_digests_of(self, workers: Sequence[History]) -> History:
        """This history with the digests of all workers' rows."""
        by_window = zip_longest(*(worker.stream_digests for worker in workers), fillvalue=0)
        return replace(
            self,
            stream_digest=sum(worker.stream_digest for worker in workers) & MASK64,
            stream_digests=[sum(parts) & MASK64 for parts in by_window],
        )

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def digest_window(num_steps: int) -> int:
    """The number of steps that one of `History.stream_digests` covers: 1 in runs of up to 1,000 steps."""
    return -(-num_steps // _MAX_WINDOWS)
