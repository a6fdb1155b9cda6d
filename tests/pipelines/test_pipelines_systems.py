"""The systems of an evaluation: exact search by the index's metric, and documents that are not there."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from indexing.evaluation.tasks import RetrievalTask
from indexing.fusion import FusionConfig
from indexing.hits import Hits
from indexing.plan import SearchParams
from indexing.store import DELETED_FILE
from indexing.vectors import VectorForm, write_vectors
from pipelines.errors import InputError
from pipelines.evaluate import HYBRID, SYSTEMS, _cells
from pipelines.manifest import Manifest, ShardRecord
from pipelines.prepare import write_parquet
from pipelines.report_map import check_map_column, documents_map
from pipelines.shown import read_shown
from pipelines.storage import Location
from pipelines.systems import EvaluationTask, cell_name
from pipelines.task_source import TaskSource


@pytest.fixture
def task(tmp_path):
    place = Location.parse(tmp_path)
    rows = {"row_id": pa.array([0, 1], pa.int64()), "doc_id": ["near", "long"], "text": ["close by", "far"]}
    write_parquet((place / "documents").make_dir() / "part-00000.parquet", pa.table(rows))
    vectors = np.array([[1.0, 0.0], [3.0, 3.0]], np.float32)
    target = (place / "vectors").make_dir() / "part-00000.parquet"
    write_vectors(target.filesystem, target.path, [0, 1], vectors, dtype="float32")
    shard = ShardRecord(name="part-00000", num_rows=2, digest="")
    manifest = Manifest(
        stage="documents", fingerprint="", config={}, inputs={}, counts={"rows_kept": 2}, shards=(shard,)
    )
    return EvaluationTask(place, place / "documents", manifest, place / "report", 2, "cosine", VectorForm())


@pytest.mark.parametrize(("metric", "best"), [("cosine", 0), ("inner_product", 1)])
def test_exact_search_ranks_by_the_metric_of_the_index(task, monkeypatch, metric, best):
    from pipelines import systems

    query = np.array([[2.0, 0.1]], np.float32)
    monkeypatch.setattr(systems, "_encode", lambda *_: query)
    system = systems.System(name="x", kind="exact", encoder="encoder", vectors="vectors")
    hits = systems._exact(dataclasses.replace(task, metric=metric), system, ["a query"])
    assert hits.ids[0, 0] == best


def test_judged_documents_outside_the_collection_are_counted_and_all_of_them_refused(task):
    def judged(*doc_ids):
        return RetrievalTask("t", ["q"], ["a query"], {"q": dict.fromkeys(doc_ids, 1)})

    assert task._judged_rows(judged("near")) == {"near": 0}
    assert task._judged_rows(judged("near", "gone")) == {"near": 0}
    with pytest.raises(InputError, match="none of its 2 judged documents"):
        task._judged_rows(judged("gone", "also gone"))


def test_a_cell_keeps_the_texts_of_the_first_hits_and_of_the_right_document(task, monkeypatch):
    from pipelines import systems

    monkeypatch.setattr(systems, "_encode", lambda *_: np.array([[2.0, 0.1]], np.float32))
    judged = RetrievalTask("t", ["q"], ["a query"], {"q": {"long": 1, "gone": 1}}, num_skipped_queries=3)
    system = systems.System(name="x", kind="exact", encoder="encoder", vectors="vectors")
    record = task()("cell", {"task": judged, "system": system})
    (shown,) = read_shown(task.output / "shown" / "cell.parquet")
    assert (shown.query, shown.relevant_text, shown.best_rank) == ("a query", "far", 2)
    assert [(hit["text"], hit["relevant"]) for hit in shown.hits] == [("close by", False), ("far", True)]
    assert record.counts == {"skipped_queries": 3, "unknown_queries": 0, "unknown_documents": 1}


def test_the_speed_of_every_search_setting_is_measured(task, monkeypatch):
    from pipelines import systems

    class Index:
        def search(self, vectors, k, *, params):
            found = np.array([[0, 1] if params.num_probes == 2 else [1, -1]], np.int64)
            return Hits(found, np.array([[1.0, 0.5]], np.float32))

    monkeypatch.setattr(systems, "_encode", lambda *_: np.array([[2.0, 0.1]], np.float32))
    monkeypatch.setattr(systems, "open_index", lambda _: Index())
    grid = tuple(SearchParams(num_probes=n) for n in (1, 2))
    system = systems.System(name="x", kind="index", encoder="encoder", vectors="vectors")
    dataclasses.replace(task, search_grid=grid)._measure_speed("cell", system, ["a query"])
    points = (task.output / "speed" / "cell.json").read_json()["points"]
    assert [recall for _, recall in points] == [0.5, 1.0]
    assert all(speed > 0 for speed, _ in points)


def test_the_map_shows_a_sample_of_the_documents(task):
    svg = documents_map(task.documents, task.manifest, task.workspace / "vectors", seed=0)
    assert svg.startswith("<svg")
    assert "close by" in svg
    assert "http" not in svg


def test_the_map_shows_titles_where_documents_have_them(task):
    rows = {"row_id": pa.array([0, 1], pa.int64()), "doc_id": ["near", "long"], "text": ["close by", "far"]}
    rows["title"] = ["Nearness", None]
    write_parquet(task.documents / "part-00000.parquet", pa.table(rows))
    svg = documents_map(task.documents, task.manifest, task.workspace / "vectors", seed=0)
    assert "<title>Nearness</title>" in svg
    assert "<title>far</title>" in svg
    assert "<title>close by</title>" not in svg


def test_the_map_is_coloured_by_a_column_of_the_documents_and_the_legend_names_it(task):
    rows = {"row_id": pa.array([0, 1], pa.int64()), "doc_id": ["near", "long"], "text": ["close by", "far"]}
    rows["year"] = pa.array([2001, None], pa.int64())
    write_parquet(task.documents / "part-00000.parquet", pa.table(rows))
    vectors = task.workspace / "vectors"
    svg = documents_map(task.documents, task.manifest, vectors, column="year", seed=0)
    for shown in (">colour: year<", ">2001 (1)<", ">other (1)<"):
        assert shown in svg
    assert ">colour: clusters of similar texts<" in documents_map(
        task.documents, task.manifest, vectors, seed=0
    )
    check_map_column(task.documents, task.manifest, "year")
    with pytest.raises(InputError, match=r"map_column is 'mood', the columns of .* are row_id, doc_id, text"):
        check_map_column(task.documents, task.manifest, "mood")


def test_documents_that_were_deleted_are_not_on_the_map_and_counted(task):
    place, vectors = task.documents, task.workspace / "vectors"
    rows = {
        "row_id": pa.array(range(4), pa.int64()),
        "doc_id": [f"d{i}" for i in range(4)],
        "text": ["close by", "gone one", "far", "gone two"],
        "year": [1, 2, 3, 4],
    }
    write_parquet(place / "part-00000.parquet", pa.table(rows))
    target = vectors / "part-00000.parquet"
    write_vectors(target.filesystem, target.path, range(4), np.eye(4, dtype=np.float32), dtype="float32")
    shards = (ShardRecord(name="part-00000", num_rows=4, digest=""),)
    whole = dataclasses.replace(task.manifest, shards=shards)
    np.save((place / DELETED_FILE).local_path, np.array([1, 3], np.int64))
    grown = dataclasses.replace(whole, files={DELETED_FILE: ""})
    shown = documents_map(place, grown, vectors, column="year", seed=0)
    for part in ("close by", ">far<", ">1 (1)<", ">3 (1)<", ">2 deleted documents are left out<"):
        assert part in shown
    assert "gone" not in shown
    assert shown.count("<title>") == 2
    before = documents_map(place, whole, vectors, seed=0)
    assert "gone one" in before
    assert "deleted" not in before
    np.save((place / DELETED_FILE).local_path, np.arange(1, 4))
    assert documents_map(place, grown, vectors, seed=0) == "", "one document makes no map"


def test_hybrid_is_the_fusion_of_the_index_and_bm25_both_deep_enough(task, monkeypatch):
    from pipelines import systems

    depths = []

    def ranking(*ids):
        def search(task, _system, _queries):
            depths.append(task.top_k)
            return Hits(np.array([ids], np.int64), -np.arange(len(ids), dtype=np.float32)[None])

        return search

    monkeypatch.setattr(systems, "_index", ranking(0, 1, 2))
    monkeypatch.setattr(systems, "_bm25", ranking(2, 1))
    fusion = FusionConfig(rank_offset=1, dense_weight=0.3, depth=50)
    hybrid = next(system for system in SYSTEMS if system.kind == "hybrid")
    found = systems._SEARCH["hybrid"](dataclasses.replace(task, fusion=fusion), hybrid, ["a query"])
    assert depths == [50, 50]
    assert found.ids.tolist() == [[2, 1]]  # 0.7 / 2 + 0.3 / 4 and 0.3 / 3 + 0.7 / 3, before 0.3 / 2
    assert found.scores.tolist() == [pytest.approx([0.7 / 2 + 0.3 / 4, 0.3 / 3 + 0.7 / 3])]


def test_a_run_has_a_hybrid_row_wherever_something_is_ranked_and_none_on_pairs(tmp_path):
    place, fusion = Location.parse(tmp_path), FusionConfig(rank_offset=7)
    ranking = ("askubuntu", "rerank", "scidocs", "cqadupstack", "beir")
    kinds = (*ranking, "pairs", "sts", "twitterpara")
    sources = [TaskSource(name=kind, kind=kind, place=place, split="test", top_k=10) for kind in kinds]
    cells = _cells(sources, place, fusion)
    hybrid = [cell for cell in cells if cell.system == HYBRID]
    assert [cell.task for cell in hybrid] == list(ranking)
    assert {cell.spec["system"].fusion for cell in hybrid} == {fusion}
    assert len({cell.name for cell in cells}) == len(cells) == 4 * len(ranking) + 3 * 3


def test_names_of_cells_sort_like_their_numbers():
    names = [cell_name(i, j) for i in (0, 2, 10) for j in (0, 3)]
    assert names == sorted(names)
