"""What Ray costs a training: `tsdae train` with one worker beside a bare loop over the same batches.

Both sides run the same steps of the same batches with one thread, in turns, each in a process of its own. The
bare loop has its batches made beforehand and does nothing but training steps; the training reads, noises and
ships them in Ray Data tasks, averages over workers, logs. Rates are those of windows of some steps without
the first (the start of the stream) and without pauses for validation and checkpoints. Two cores must be free:
one trains, the other makes batches.

    python benchmarks/bench_ray_cost.py [--sentences FILE] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from step_setting import add_corpus_argument, read_sentences

_SENTENCES = 20_000
_STEPS = 80
_WINDOW = 10


def main() -> None:
    """Runs the rounds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_corpus_argument(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        print(json.dumps(_bare_windows(args.bare)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-ray-cost-") as name:
        folder = Path(name)
        text = folder / "sentences.txt"
        lines = (" ".join(line.split()) for line in read_sentences(args.sentences, limit=_SENTENCES))
        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        bare: list[float] = []
        trained: list[float] = []
        for number in range(args.rounds):
            config = _write_config(folder, text, seed=number)
            _run(["-m", "pipelines", "prepare", str(config)])
            _run(["-m", "pipelines", "train", str(config)])
            trained += _trained_windows(folder / f"work-{number}")
            bare += json.loads(_run([__file__, "--bare", str(config)]).splitlines()[-1])
            ratio = statistics.median(trained) / statistics.median(bare)
            print(
                f"after {number + 1} rounds: bare {statistics.median(bare):,.0f} tokens/s, "
                f"tsdae train {statistics.median(trained):,.0f} ({ratio:.3f}x)"
            )


def _write_config(folder: Path, text: Path, *, seed: int) -> Path:
    scratch = {"num_layers": 6, "hidden_size": 384, "num_heads": 12, "intermediate_size": 1536}
    config = {
        "workspace": str(folder / f"work-{seed}"),
        "seed": seed,
        "corpus": {"input": str(text)},
        "model": {"start": "scratch", "max_tokens": 75, "scratch": {**scratch, "vocab_size": 30_522}},
        "train": {
            "batch_size": 32,
            "num_steps": _STEPS,
            "num_workers": 1,
            "log_every": _WINDOW,
            "checkpoint_every": _STEPS,
            "validate_every": _STEPS,
        },
    }
    path = folder / f"ray-cost-{seed}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _run(arguments: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, *arguments], check=False, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _trained_windows(workspace: Path) -> list[float]:
    """Tokens per second of every window of the training but the first, by its MLflow run."""
    from pipelines.tracking import Tracker

    client = Tracker(f"sqlite:///{workspace / 'mlflow.db'}", "tsdae", None).client()
    (run,) = client.search_runs([client.get_experiment_by_name("tsdae").experiment_id])
    points = client.get_metric_history(run.info.run_id, "tokens_per_s")
    return [point.value for point in sorted(points, key=lambda point: point.step)][1:]


def _bare_windows(path: Path) -> list[float]:
    """The same of a loop that has nothing but training steps."""
    import torch

    from pipelines.config_io import load_config
    from pipelines.lanes import chunks
    from pipelines.manifest import read_manifest
    from pipelines.storage import Location
    from pipelines.stream import steps_of
    from pipelines.token_shards import TokenRows
    from pipelines.train_job import Training
    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.optim import build_optimizer
    from tsdae_core.step import training_step

    torch.set_num_threads(1)
    config = load_config(path)
    workspace = Location.parse(config.workspace)
    tokens = read_manifest(workspace / "tokens")
    assert tokens is not None
    job = Training.of(config, workspace, tokens, storage=workspace / "unused")
    rows = TokenRows.open(workspace, tokens)
    work = chunks(job.plan, first_step=0, num_steps=_STEPS)
    steps = steps_of(work, job.plan, rows, job.objective, max_batch_tokens=job.config.max_batch_tokens)
    with (workspace / "start").as_local_folder() as folder:
        model = job.objective.build_model(SentenceEncoder.load(str(folder)), seed=job.seed).train()
    optimizer = build_optimizer(model, job.config.optim)
    rates = []
    for first in range(0, _STEPS, _WINDOW):
        window = steps[first : first + _WINDOW]
        started_s = time.monotonic()
        for step in window:
            batches = list(step.micro_batches)
            training_step(
                model,
                batches,
                optimizer,
                global_num_targets=sum(job.objective.num_targets(batch) for batch in batches),
                max_grad_norm=job.config.optim.max_grad_norm,
                dropout_key=step.step,
            )
        rates.append(sum(step.num_tokens for step in window) / (time.monotonic() - started_s))
    return rates[1:]


if __name__ == "__main__":
    main()
