"""Do we give the numbers that USEB's own code gives? On made-up folders, with its real evaluators.

    pip install --no-deps useb==0.0.1
    python benchmarks/check_useb.py

USEB's package is of 2021 and names a pytrec-eval that no longer builds, hence --no-deps; everything it needs
comes with the development tools. Prints both numbers of every metric; exit code 1 when one is off by over
0.01 (of 100), which leaves room for its single-precision ties.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import pyarrow.fs
import torch
import useb.evaluating

from indexing.evaluation.readers import read_task
from indexing.evaluation.scorers import VectorScorer
from indexing.evaluation.scoring import score_task
from indexing.evaluation.summary import summarise
from tests.indexing.evaluation.useb_builders import encode, write_all

FILES = pyarrow.fs.LocalFileSystem()
# Our measure -> USEB's metric; the group is appended to both.
NAMES = {
    "askubuntu": {
        "map": "map_askubuntu_title",
        "mrr": "mrr_askubuntu_title",
        "precision_at_1": "p@1_askubuntu_title",
        "precision_at_5": "p@5_askubuntu_title",
    },
    "cqadupstack": {
        "useb_map_at_100": "map@100_cqadupstack_avg",
        "ndcg_at_10": "ndcg@10_cqadupstack_avg",
        "useb_map_at_100.android": "map@100_cqadupstack_android",
    },
    "twitterpara": {
        "ap": "ap_twitter_avg",
        "spearman": "spearman_twitter_avg",
        "ap.pit": "ap_twitter_pit",
    },
    "scidocs": {
        "map": "map_scidocs_cosine_avg",
        "ndcg": "ndcg_scidocs_cosine_avg",
        "map.cocite": "map_scidocs_cocite_cosine",
    },
}


def semb_fn(texts: list[str]) -> torch.Tensor:
    """The encoder in USEB's form."""
    return torch.from_numpy(encode(texts))


def ours(folder: Path, kind: str, split: str) -> dict[str, float]:
    """Our values by measure, times 100."""
    task = read_task(FILES, str(folder / kind), kind=kind, split=split)
    scores = score_task(task, VectorScorer(encode), system="s")
    (summary,) = summarise(scores.rows, pair_rows=scores.pair_rows, baseline="s")
    return {measure: 100 * cell.interval.mean for (_, measure), cell in summary.cells.items()}


def main() -> int:
    """Prints one line for each metric."""
    logging.disable(logging.WARNING)
    num_off = 0
    for seed in range(5):
        with tempfile.TemporaryDirectory() as place:
            folder = write_all(Path(place), seed=seed)
            for kind, names in NAMES.items():
                for split in ("valid", "test"):
                    evaluator = useb.evaluating.evaluator_map[kind](semb_fn, str(folder / kind), show=False)
                    theirs, mine = evaluator.run(split), ours(folder, kind, split)
                    for name, other in names.items():
                        off = abs(mine[name] - theirs[other]) > 0.01
                        num_off += off
                        mark = "OFF" if off else "ok "
                        print(f"{mark} {seed} {split:5} {other}: {mine[name]:.2f} (USEB {theirs[other]:.2f})")
    return 1 if num_off else 0


if __name__ == "__main__":
    sys.exit(main())
