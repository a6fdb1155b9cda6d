"""How time and memory grow: a training step with its tokens, the stages with the rows of the corpus.

A step of 6 x 384 (vocabulary 30,522) runs at batch sizes from 1 to 512, one thread, CPU time. The stages run
in a fresh process and Ray cluster for each size of a corpus of short made-up rows; the encoder is tiny (one
layer of 32), so that what is seen is the stages and not the model. Memory is as in bench_prepare: the
driver's peak and the largest private memory of one Ray worker. Writes OUT.json and a plot OUT.svg.

    python benchmarks/bench_growth.py [--rows 1000 10000 100000 1000000] [--out docs/growth]
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_prepare import WorkerWatch, peak_mib, write_corpus

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_STAGES = ("prepare", "tokenize and one step", "embed", "index")


def main() -> None:
    """Measures, writes and draws; `--draw` only draws what OUT.json holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path("growth"))
    parser.add_argument("--sentences", type=Path, help="as for bench_train_step.py")
    parser.add_argument("--cpus", type=int, default=2, help="logical CPUs of the Ray cluster")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_stages(options.one, options.cpus)))
        return
    record = options.out.with_suffix(".json")
    if not options.draw:
        found = {"steps": measure_steps(options.sentences), "stages": []}
        for num_rows in options.rows:
            found["stages"].append(_in_process(num_rows, options.cpus))
            print(json.dumps(found["stages"][-1]), flush=True)
        record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found = json.loads(record.read_text(encoding="utf-8"))
    print(tables(found))
    draw(found, options.out.with_suffix(".svg"))


def measure_steps(sentences: Path | None) -> list[dict[str, float]]:
    """Tokens through the model and CPU seconds (median of five) of a step, by batch size."""
    import torch
    from step_setting import OurStep, Shape, build_encoder, build_tokenizer, make_batches, read_sentences

    torch.set_num_threads(1)
    texts = read_sentences(sentences, limit=100_000)
    tokenizer = build_tokenizer(texts)
    ours = OurStep(build_encoder(Shape(6, 384), tokenizer))
    found = []
    for size in _BATCH_SIZES:
        (batch,) = make_batches(ours.objective, texts, tokenizer, size=size, count=1)
        seconds = []
        for number in range(6 if size < 256 else 4):
            begin = time.process_time()
            ours.step(batch)
            if number:
                seconds.append(time.process_time() - begin)
        tokens = int(batch["source_lengths"].sum() + batch["target_lengths"].sum() - size)
        found.append({"batch": size, "tokens": tokens, "seconds": statistics.median(seconds)})
        print(json.dumps(found[-1]), flush=True)
    return found


def measure_stages(source: str, num_cpus: int) -> dict[str, Any]:
    """One run of the stages in this process: seconds and memory of each."""
    import ray

    from pipelines.collection import finished_manifest
    from pipelines.config import RunConfig
    from pipelines.config_io import config_of
    from pipelines.embed import embed
    from pipelines.index_stage import build_index
    from pipelines.phases import train_phases
    from pipelines.prepare import prepare
    from pipelines.progress import Reporter
    from pipelines.storage import Location

    ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    scratch = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder:
        tree = {
            "workspace": folder,
            "corpus": {"input": source},
            "model": {"start": "scratch", "max_tokens": 32, "scratch": {**scratch, "vocab_size": 8_000}},
            "train": {"num_steps": 1, "batch_size": 8, "validation_rows": 0},
        }
        config = config_of(tree, RunConfig)
        workspace, reporter = Location.parse(folder), Reporter()
        work: Sequence[Callable[[], object]] = (
            lambda: prepare("corpus", config.corpus, workspace, reporter=reporter),
            lambda: train_phases(
                config,
                workspace,
                finished_manifest(workspace / "corpus", command="prepare"),
                reporter=reporter,
            ),
            lambda: embed(config, workspace, reporter=reporter),
            lambda: build_index(config, workspace, reporter=reporter),
        )
        stages = {}
        for name, stage in zip(_STAGES, work, strict=True):
            watch = WorkerWatch()
            watch.start()
            started_s = time.monotonic()
            stage()
            stages[name] = {"seconds": time.monotonic() - started_s}
            watch.stopped.set()
            watch.join()
            stages[name] |= {"driver_mib": peak_mib(), "worker_mib": watch.peak_bytes / 2**20}
        rows = finished_manifest(workspace / "corpus", command="prepare").counts["rows_read"]
    ray.shutdown()
    return {"rows": rows, "stages": stages}


def _in_process(num_rows: int, num_cpus: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-rows-") as folder:
        write_corpus(Path(folder), num_rows)
        command = [sys.executable, __file__, "--one", folder, "--cpus", str(num_cpus)]
        environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def fit_line(steps: Sequence[dict[str, float]]) -> tuple[float, float, float]:
    """Least squares of relative errors: seconds of a step, seconds of a token, and the largest error."""
    tokens, seconds = (np.asarray([step[key] for step in steps]) for key in ("tokens", "seconds"))
    design = np.stack([1 / seconds, tokens / seconds], axis=1)
    (fixed, per_token), *_ = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)
    error = np.abs((fixed + per_token * tokens) / seconds - 1).max()
    return float(fixed), float(per_token), float(error)


def tables(found: dict[str, Any]) -> str:
    """Markdown of what was found."""
    fixed, per_token, error = fit_line(found["steps"])
    lines = [
        f"A step takes {1000 * fixed:.0f} ms + {1000 * per_token:.2f} ms a token (largest error {error:.0%})",
        "",
        "| batch | tokens | ms | ms a token |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {step['batch']} | {step['tokens']:,} | {1000 * step['seconds']:.0f} "
        f"| {1000 * step['seconds'] / step['tokens']:.2f} |"
        for step in found["steps"]
    ]
    lines += [
        "",
        "| rows | " + " | ".join(f"{name}, s | driver, MiB | worker, MiB" for name in _STAGES) + " |",
    ]
    lines.append("|---" * (1 + 3 * len(_STAGES)) + "|")
    for run in found["stages"]:
        cells = [
            f"{stage['seconds']:.1f} | {stage['driver_mib']:.0f} | {stage['worker_mib']:.0f}"
            for stage in (run["stages"][name] for name in _STAGES)
        ]
        lines.append(f"| {run['rows']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(found: dict[str, Any], place: Path) -> None:
    """Three plots beside one another, both axes logarithmic: step, seconds and memory of the stages."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "growth"  # equal data give an equal file
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    fixed, per_token, _ = fit_line(found["steps"])
    tokens = np.asarray([step["tokens"] for step in found["steps"]])
    left.loglog(tokens, [1000 * step["seconds"] for step in found["steps"]], "o", label="measured")
    left.loglog(tokens, 1000 * (fixed + per_token * tokens), label="fixed + per token")
    left.set(xlabel="tokens of a step", ylabel="ms", title="Training step, 6 x 384, one thread")
    rows = np.asarray([run["rows"] for run in found["stages"]])
    for name in _STAGES:
        stages = [run["stages"][name] for run in found["stages"]]
        middle.loglog(rows, [stage["seconds"] for stage in stages], "o-", label=name)
        right.loglog(rows, [stage["worker_mib"] for stage in stages], "o-", label=f"{name}, worker")
    right.loglog(
        rows, [run["stages"][_STAGES[-1]]["driver_mib"] for run in found["stages"]], "k--", label="driver"
    )
    middle.set(xlabel="rows", ylabel="seconds", title="Stages, tiny encoder")
    right.set(xlabel="rows", ylabel="MiB, peak", title="Memory", ylim=(50, 20_000))
    for axis in (left, middle, right):
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(place, metadata={"Date": None})


if __name__ == "__main__":
    main()
