"""What a user gets from `tsdae run`, looked at from outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.bare_process import logged_requirements, predict_bare
from tests.end_to_end.conftest import TinyRun
from tests.end_to_end.helpers import STAGE_FOLDERS, manifest_digests, tsdae

_TEXTS = ["How are options parsed?", "Print a table.", "x"]


def test_every_stage_leaves_a_manifest_and_no_working_files(tiny_run: TinyRun) -> None:
    for name in STAGE_FOLDERS:
        folder = tiny_run.workspace / name
        assert (folder / "manifest.json").is_file()
        assert not list(folder.glob("_*")), name
        assert not list(folder.rglob("*.tmp-*")), name


def test_summary_shows_scores_examples_places_and_next_commands(tiny_run: TinyRun) -> None:
    for part in (
        "before training",
        "after training",
        "BM25",
        "after training, hybrid with BM25",
        "nDCG@10",
        "Query:",
        "report.html",
        "tsdae search",
        "mlflow ui",
    ):
        assert part in tiny_run.stdout, part


def test_progress_names_every_stage(tiny_run: TinyRun) -> None:
    for stage in ("prepare", "train", "embed", "index", "lookup", "evaluate", "register"):
        assert f"] {stage}" in tiny_run.stderr


def test_rerun_does_nothing_and_says_so(tiny_run: TinyRun) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_run.workspace.rglob("*.parquet")}
    done = tsdae("run", str(tiny_run.config))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("up to date") == 8
    assert {path: path.stat().st_mtime_ns for path in tiny_run.workspace.rglob("*.parquet")} == before


def test_one_vector_per_document_under_its_own_row_id(tiny_run: TinyRun) -> None:
    for shard in sorted((tiny_run.workspace / "documents").glob("part-*.parquet")):
        vectors = pq.read_table(tiny_run.workspace / "vectors" / shard.name)
        assert vectors.column("row_id").to_pylist() == pq.read_table(shard).column("row_id").to_pylist()


def test_training_lowers_the_validation_loss_and_logs_one_mlflow_run(tiny_run: TinyRun) -> None:
    log = json.loads((tiny_run.workspace / "encoder" / "training_log.json").read_text())
    losses = [loss for _, loss in log["validation_losses"]]
    assert losses[-1] < losses[0]
    from pipelines.tracking import Tracker

    client = Tracker(f"sqlite:///{tiny_run.workspace / 'mlflow.db'}", "tsdae", None).client()
    runs = client.search_runs([client.get_experiment_by_name("tsdae").experiment_id])
    assert len(runs) == 1
    assert runs[0].info.status == "FINISHED"
    history = client.get_metric_history(runs[0].info.run_id, "train_loss_nats_per_token")
    assert [metric.step for metric in history] == [4, 8, 12, 16, 20, 24]
    for name in ("tokens_per_s", "sentences_per_s", "target_token_share", "validation_loss_nats_per_token"):
        assert name in runs[0].data.metrics


def test_encoder_gives_the_same_vectors_in_sentence_transformers_and_auto_model(tiny_run: TinyRun) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    from tsdae_core.encoder import SentenceEncoder

    folder = str(tiny_run.workspace / "encoder")
    ours = SentenceEncoder.load(folder).encode(_TEXTS)
    np.testing.assert_allclose(SentenceTransformer(folder, device="cpu").encode(_TEXTS), ours, atol=1e-5)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = model(**tokenizer(_TEXTS, padding=True, return_tensors="pt")).last_hidden_state
    np.testing.assert_allclose(states[:, 0].numpy(), ours, atol=1e-5)


def test_the_promoted_model_embeds_in_a_process_that_has_nothing_of_ours(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    """It gets by with the logged code and what the logged requirements bring, and can import nothing else."""
    gate = ["promote.min_gain=-1", "promote.max_p_value=1", "promote.max_loss=1"]
    promoted = tsdae("promote", str(tiny_run.config), *gate)
    assert promoted.returncode == 0, promoted.stderr
    from pipelines.tracking import Tracker
    from tsdae_core.encoder import SentenceEncoder

    tracker = Tracker(f"sqlite:///{tiny_run.workspace / 'mlflow.db'}", "tsdae", None)
    with tracker.active():
        lines = logged_requirements(tracker.client(), "tiny-encoder", "champion")
    assert not [line for line in lines if "==" not in line]  # every one is pinned
    vectors = predict_bare(
        "models:/tiny-encoder@champion", tracker.uri, _TEXTS, requirements=lines, folder=tmp_path
    )
    ours = SentenceEncoder.load(str(tiny_run.workspace / "encoder")).encode(_TEXTS)
    np.testing.assert_allclose(vectors, ours, atol=1e-5)


def test_search_finds_a_document_by_its_own_text(tiny_run: TinyRun) -> None:
    table = pq.read_table(tiny_run.workspace / "documents" / "part-00000.parquet")
    text, doc_id = table.column("text")[0].as_py(), table.column("doc_id")[0].as_py()
    done = tsdae("search", "--workspace", str(tiny_run.workspace), "-k", "3", "--json", text)
    assert done.returncode == 0, done.stderr
    hits = [json.loads(line) for line in done.stdout.splitlines()]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert hits[0]["doc_id"] == doc_id
    assert hits[0]["score"] == pytest.approx(1.0, abs=1e-4)
    assert hits[0]["text"] == text


def test_a_changed_index_setting_redoes_only_what_depends_on_it(tiny_run: TinyRun) -> None:
    before = manifest_digests(tiny_run.workspace)
    done = tsdae("run", str(tiny_run.config), "index.num_query_sample=50")
    assert done.returncode == 0, done.stderr
    for stage in ("corpus", "documents", "train", "vectors"):
        assert f"{stage}: up to date" in done.stderr
    assert "index: up to date" not in done.stderr
    after = manifest_digests(tiny_run.workspace)
    assert {name for name in before if before[name] != after[name]} <= {"index", "report", "registration"}
