"""Our encoder runs under the mteb package, on a task made here, and gets the score that we give it."""

import mteb
import pytest
from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

from indexing.evaluation.scorers import VectorScorer
from indexing.evaluation.scoring import score_task
from indexing.evaluation.summary import summarise
from indexing.evaluation.text_tasks import Pair, PairTask
from pipelines.mteb_model import MtebModel
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.pretrained import small_encoder_path

PAIRS = [
    ("a man plays a guitar", "a man plays the guitar", 5.0),
    ("a man plays a guitar", "a person plays music", 3.0),
    ("the disk is full", "there is no space left", 3.5),
    ("the disk is full", "a cat sleeps", 0.0),
    ("reset the counter", "set the counter to zero", 4.0),
    ("reset the counter", "it rains in spring", 0.5),
]


class LocalSts(AbsTaskSTS):
    """Six pairs, nothing to download."""

    metadata = TaskMetadata(
        name="LocalSts",
        description="made by the test",
        dataset={"path": "local", "revision": "1"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
    )

    def load_data(self, *_, **__):
        names = ("sentence1", "sentence2", "score")
        columns = dict(zip(names, map(list, zip(*PAIRS, strict=True)), strict=True))
        self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
        self.data_loaded = True


def test_the_encoder_runs_under_mteb_and_both_give_the_same_score():
    path = str(small_encoder_path())
    result = mteb.evaluate(MtebModel.load(path), LocalSts(), cache=None, show_progress_bar=False)
    scores = result.task_results[0].scores["test"][0]
    pairs = tuple(Pair(pair_id=str(n), left=a, right=b, label=y) for n, (a, b, y) in enumerate(PAIRS))
    task = PairTask(name="local", protocol="sts", pairs=pairs)
    rows = score_task(task, VectorScorer(SentenceEncoder.load(path).encode), system="s").pair_rows
    (summary,) = summarise([], pair_rows=rows, baseline="s")
    for ours, theirs in (("spearman", "cosine_spearman"), ("pearson", "cosine_pearson")):
        assert summary.cells["s", ours].interval.mean == pytest.approx(scores[theirs], abs=1e-5)
    assert result.model_name == "tsdae-ray/encoder"
