"""The lookup's versions: readers are answered while one is built and after a kill; BM25 is opened from it."""

import dataclasses
import shutil

import numpy as np
import pytest
from index_builders import NUM_DOCS, NUM_SHARDS, build_workspace, of, sentence, without_ray
from pipeline_builders import quiet_reporter, write_rows
from shard_builders import run_shards_here

import pipelines.lookup
import pipelines.lookup_tasks
from indexing.bm25 import BM25Config, BM25Searcher
from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.grow import add_documents, delete_documents
from pipelines.index_stage import build_index
from pipelines.lexical import lexical_place, lexical_searcher
from pipelines.lookup import build_lookup
from pipelines.readable import find_readable
from pipelines.search import Searcher
from pipelines.service.live import LiveSearcher
from pipelines.storage import Location

NEW = "zebra stripes beside the wide river 9001"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    build_workspace(folder, with_index=True)
    with pytest.MonkeyPatch.context() as patch:
        without_ray(patch)
        build_lookup(of(folder, folder), Location.parse(folder), reporter=quiet_reporter()[0])
    return folder


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    without_ray(monkeypatch)


@pytest.fixture
def workspace(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def best(workspace, text, mode="dense"):
    """The best text that somebody finds who opens the workspace now."""
    return Searcher.open(str(workspace)).search([text], 1, mode=mode)[0][0].text


def grow(finished, workspace, tmp_path):
    """Adds one document to the index; the lookup is not told."""
    more = write_rows(tmp_path / "more.jsonl", [("n1", NEW, "new")], columns=("id", "text", "title"))
    config, place = of(finished, workspace), Location.parse(workspace)
    add_documents(config, place, str(more), reporter=quiet_reporter()[0])
    return config, place


def versions(workspace):
    return sorted(path.name for path in (workspace / "lookup" / "versions").iterdir())


def test_a_reader_is_answered_from_the_former_version_at_every_moment_of_a_rebuild(
    finished, workspace, tmp_path, monkeypatch
):
    opened, seen = Searcher.open(str(workspace)), []
    live = LiveSearcher(RunConfig(workspace=str(workspace)))

    def look(*_):
        for mode in ("dense", "bm25"):
            found = best(workspace, NEW, mode)
            assert opened.search([NEW], 1, mode=mode)[0][0].text == found
            seen.append(found)

    def watched(stage, group, items, work, **options):
        look()
        found = [run_shards_here(stage, group, {name: items[name]}, work, **options) for name in items]
        look()
        return [record for records in found for record in records]

    config, place = grow(finished, workspace, tmp_path)
    look()
    assert not live.check(), "the service stays with the pair that belongs together"
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.lookup.run_shards", watched)
        build_lookup(config, place, reporter=quiet_reporter()[0])
    assert len(seen) == 10
    assert NEW not in seen
    assert {best(workspace, NEW), best(workspace, NEW, "bm25")} == {NEW}
    assert live.check()
    assert live.current.searcher.search([NEW], 1)[0][0].text == NEW
    assert live.last_error is None
    assert opened.search([sentence(3)], 1)[0][0].text == sentence(3), "an opened version stays whole"
    assert versions(workspace) == ["0001", "0002"]
    delete_documents(config, place, ["n1"], reporter=quiet_reporter()[0])
    build_lookup(config, place, reporter=quiet_reporter()[0])
    assert versions(workspace) == ["0002", "0003"], "the current one and the one before"
    assert best(workspace, NEW) != NEW


def test_a_kill_in_the_middle_leaves_the_former_version_readable_and_the_rerun_goes_on(
    finished, workspace, tmp_path, monkeypatch
):
    config, place = grow(finished, workspace, tmp_path)
    written = []
    real = pipelines.lookup_tasks.write_documents
    monkeypatch.setattr(
        pipelines.lookup_tasks, "write_documents", lambda *a: written.append(a[1]) or real(*a)
    )

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipelines.lookup_tasks, "write_id_table", killed)
        with pytest.raises(KeyboardInterrupt):
            build_lookup(config, place, reporter=quiet_reporter()[0])
    assert best(workspace, NEW) != NEW
    assert best(workspace, sentence(3)) == sentence(3)
    build_lookup(config, place, reporter=quiet_reporter()[0])
    assert best(workspace, NEW) == NEW
    assert len(written) == NUM_SHARDS + 1, "finished shards are not written again"
    names = {path.name for path in (workspace / "lookup").iterdir()}
    assert names == {"CURRENT", "manifest.json", "versions"}


def test_a_kill_between_the_switch_and_the_record_is_mended_by_the_next_run(
    finished, workspace, tmp_path, monkeypatch
):
    config, place = grow(finished, workspace, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.versions.VersionedStage._tidy", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_lookup(config, place, reporter=quiet_reporter()[0])
    assert best(workspace, NEW) == NEW
    (workspace / "lookup" / "versions" / "0009").mkdir()
    build_lookup(config, place, reporter=quiet_reporter()[0])
    assert versions(workspace) == ["0001", "0002"]
    assert not (workspace / "lookup" / "_receipts").exists()
    (workspace / "lookup" / "CURRENT").unlink()
    build_lookup(config, place, reporter=quiet_reporter()[0])
    assert best(workspace, NEW) == NEW


def test_an_index_without_any_fitting_lookup_is_refused(finished, workspace, tmp_path):
    config, place = grow(finished, workspace, tmp_path)
    found = find_readable(place)
    assert (found.index.name, found.index_manifest.counts["vectors"]) == ("0001", NUM_DOCS)
    build_index(config, place, reporter=quiet_reporter()[0], anew=True)
    with pytest.raises(InputError, match="of other documents than the index; run `tsdae lookup` first"):
        find_readable(place)
    shutil.rmtree(workspace / "lookup")
    with pytest.raises(InputError, match="run `tsdae lookup` first"):
        Searcher.open(str(workspace))


def test_the_evaluation_opens_the_lookups_bm25_where_it_is_the_same_and_tells_which(finished, workspace):
    place = Location.parse(workspace)
    documents = finished_manifest(place / "documents", command="prepare")
    texts = [sentence(i) for i in range(0, 60, 7)]
    found, why = lexical_place(place, documents)
    assert why == "that of the lookup"
    with lexical_searcher(found, place / "documents", documents) as opened:
        hits = opened.retrieve(texts, 5)
    with lexical_searcher(None, place / "documents", documents) as built:
        assert built.retrieve(texts, 5).equals(hits)
    other = dataclasses.replace(documents, counts={**documents.counts, "rows_kept": 1})
    assert lexical_place(place, other) == (None, "built here, the lookup is of other documents")
    BM25Searcher.build(np.arange(2), ["a b", "c"], k1=1.2).save(found.local_path)
    assert BM25Config.saved_in(found.local_path).k1 == 1.2
    none, why = lexical_place(place, documents)
    assert none is None
    assert "the lookup has BM25Config(k1=1.2" in why
    shutil.rmtree(workspace / "lookup")
    assert lexical_place(place, documents) == (None, "built here, there is no finished lookup")
