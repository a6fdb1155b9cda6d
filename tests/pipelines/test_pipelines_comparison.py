"""Systems over tasks: every protocol in one report, cells that are not run twice, names and errors."""

import json

import numpy as np
import pytest

from indexing.fusion import FusionConfig, fuse
from pipelines.cli.evaluate import _named
from pipelines.compared_system import ComparedSystem
from pipelines.comparison import ComparisonOptions, compare
from pipelines.errors import InputError
from pipelines.storage import Location
from pipelines.task_source import parse_task
from tests.indexing.evaluation.test_evaluation_scoring import write_beir
from tests.indexing.evaluation.useb_builders import WORDS, write_all
from tests.pipelines.pipeline_builders import quiet_reporter
from tests.pipelines.shard_builders import run_shards_here
from tsdae_core.pretrained import small_encoder_path

OPTIONS = ComparisonOptions(num_examples=2)
BM25 = ComparedSystem(name="BM25", kind="bm25")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("data"))
    write_beir(folder / "beir")
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{v:.3f}' for v in rng.standard_normal(8))}\n" for word in WORDS]
    (folder / "vectors.txt").write_text("".join(lines))
    (folder / "run.txt").write_text("q1 Q0 d1 1 2.0 x\nq1 Q0 d0 2 1.0 x\n")
    (folder / "sts.tsv").write_text(
        "sentence1\tsentence2\tscore\ndisk boot\tdisk\t4\nwifi\tgrub\t0\nusb\tapt\t1.5\n"
    )
    return folder


def sources(places, *names):
    return [parse_task(str(places / name), split="test", top_k=100) for name in names]


def words(places):
    return ComparedSystem(name="words", kind="words", source=str(places / "vectors.txt"))


@pytest.fixture(scope="module", autouse=True)
def here():
    """Cells one after the other in this process, pickled as they travel; end_to_end has them on Ray."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.comparison.run_shards", run_shards_here)
        yield


@pytest.fixture(scope="module")
def finished(places, tmp_path_factory, here):
    """All kinds of systems on all kinds of tasks."""
    output = Location.parse(tmp_path_factory.mktemp("comparison"))
    systems = [
        BM25,
        words(places),
        ComparedSystem(name="words, IDF", kind="words_idf", source=str(places / "vectors.txt")),
        ComparedSystem(name="small", kind="encoder", source=str(small_encoder_path())),
        ComparedSystem(name="given", kind="run", source=str(places / "run.txt")),
        ComparedSystem(name="fused", kind="hybrid", source=str(small_encoder_path())),
    ]
    tasks = sources(places, "askubuntu", "cqadupstack", "twitterpara", "scidocs", "beir", "sts.tsv")
    reporter, said = quiet_reporter()
    done = compare(tasks, systems, output, OPTIONS, reporter=reporter)
    return done, tasks, systems, said.getvalue()


def test_every_system_is_in_the_table_of_every_task_that_it_can_do(finished):
    done, _tasks, systems, _ = finished
    content = json.loads((done.folder / "report.json").read_bytes())
    by_task = {task["task"]: {score["system"] for score in task["scores"]} for task in content["tasks"]}
    everyone = {system.name for system in systems}
    assert by_task == {
        "askubuntu": everyone,
        "cqadupstack": everyone,
        "scidocs": everyone,
        "beir": everyone,
        "twitterpara": everyone - {"given", "fused"},
        "sts": everyone - {"given", "fused"},
    }
    assert {task["unit"] for task in content["tasks"]} == {"queries", "pairs"}
    assert content["baseline"] == "BM25"
    assert set(content["mean_of_main_scores"]) == everyone - {"given", "fused"}
    for name in ("report.html", "report.md", "report.tex", "per_query.parquet", "per_pair.parquet"):
        assert (done.folder / name).exists(), name
    page = (done.folder / "report.html").read_bytes().decode()
    assert "beir: 1 judged documents are not in the collection" in page
    assert "askubuntu: 2 queries without a relevant document were left out" in page
    assert "Winners and losers" in page
    sections = {part.partition("</h2>")[0]: part for part in page.split("<section><h2>")}
    assert ">fused<" in sections["askubuntu"]
    assert ">fused<" not in sections["sts"], "no row where there is nothing to rank"
    assert "% --: the system does not apply to the task" in (done.folder / "report.tex").read_bytes().decode()


def test_a_run_file_ranks_what_it_ranks(finished):
    done = finished[0]
    summary = next(summary for summary in done.summaries if summary.task == "beir")
    assert summary.cells["given", "map"].interval.mean == 0.25  # q1 at place 2, q2 not ranked


def test_the_hybrid_row_is_the_fusion_of_the_dense_row_and_bm25_and_is_compared_like_any_other(finished):
    done, tasks, systems, _ = finished
    beir = next(task for task in tasks if task.kind == "beir")
    part = beir.load().parts[0]
    by_name = {system.name: system.scorer(beir.load()) for system in systems if system.kind != "run"}
    dense, lexical, fused = (
        by_name[name].retrieve(part.queries, part.documents, 5) for name in ("small", "BM25", "fused")
    )
    assert fused.equals(fuse(dense, lexical, 5, FusionConfig()))
    with pytest.raises(ValueError, match="scores no pairs"):
        by_name["fused"].pair_scores(["a"], ["b"])
    summary = next(summary for summary in done.summaries if summary.task == "beir")
    compared = summary.cells["fused", "map"].comparison
    assert compared is not None
    assert 0 < compared.adjusted_p_value <= 1


def test_a_hybrid_system_is_another_one_with_other_fusion_or_another_encoder():
    source = str(small_encoder_path())
    systems = [
        ComparedSystem(name="x", kind="encoder", source=source),
        ComparedSystem(name="x", kind="hybrid", source=source),
        ComparedSystem(name="x", kind="hybrid", source=source, fusion=FusionConfig(dense_weight=0.7)),
        ComparedSystem(name="x", kind="hybrid", source="some/other-encoder"),
    ]
    assert len({system.fingerprint() for system in systems}) == len(systems)


def counting(monkeypatch):
    """The names of the cells that are really run."""
    ran = []

    def watched(stage, group, items, work, **options):
        ran.extend(name for name in items if name not in stage.receipts(group))
        return run_shards_here(stage, group, items, work, **options)

    monkeypatch.setattr("pipelines.comparison.run_shards", watched)
    return ran


def test_only_what_is_new_is_run(finished, places, monkeypatch):
    done, tasks, systems, said = finished
    assert "0 cells are there, 32 to run" in said
    ran = counting(monkeypatch)
    reporter, _ = quiet_reporter()
    again = compare(tasks, systems, done.folder, OPTIONS, reporter=reporter)
    assert (ran, again.summaries) == ([], done.summaries)
    renamed = [ComparedSystem(name="lexical", kind="bm25"), words(places)]
    compare(tasks[4:], renamed, done.folder, OPTIONS, reporter=reporter)
    assert ran == []
    with (places / "vectors.txt").open("a") as stream:
        stream.write("new 1 1 1 1 1 1 1 1\n")
    compare(tasks[4:], [BM25, words(places)], done.folder, OPTIONS, reporter=reporter)
    assert len(ran) == 2


def test_what_cannot_be_compared_is_refused_before_anything_is_run(places, tmp_path):
    reporter, _ = quiet_reporter()
    output = Location.parse(tmp_path)
    (task,) = sources(places, "beir")

    def refused(message, tasks=(task,), systems=(BM25,), options=OPTIONS):
        with pytest.raises(InputError, match=message):
            compare(list(tasks), list(systems), output, options, reporter=reporter)

    refused("at least one task", tasks=())
    refused("at least one system", systems=())
    refused("two systems are called 'BM25'", systems=(BM25, BM25))
    refused("two tasks are called 'beir'", tasks=(task, task))
    refused("the baseline 'x' is none of the systems: BM25", options=ComparisonOptions(baseline="x"))
    refused(
        "no file or folder", systems=(ComparedSystem(name="w", kind="words", source=str(tmp_path / "no")),)
    )


def test_an_encoder_that_cannot_be_loaded_is_one_line(places, tmp_path):
    (tmp_path / "empty").mkdir()
    system = ComparedSystem(name="broken", kind="encoder", source=str(tmp_path / "empty"))
    reporter, _ = quiet_reporter()
    with pytest.raises(InputError, match="cannot load the encoder"):
        compare(
            sources(places, "sts.tsv"), [system], Location.parse(tmp_path / "out"), OPTIONS, reporter=reporter
        )


def test_tasks_and_systems_can_be_named(places):
    task = parse_task(f"mine=rerank:{places / 'sts.tsv'}", split="test", top_k=10)
    assert (task.name, task.kind, task.title) == ("mine", "rerank", "mine")
    assert parse_task(str(places / "beir"), split="test", top_k=10).kind == "beir"
    with pytest.raises(InputError, match=r"unknown kind of task 'pair'.*Did you mean 'pairs'"):
        parse_task("pair:data.tsv", split="test", top_k=10)
    with pytest.raises(InputError, match="no file or folder"):
        parse_task("absent", split="test", top_k=10)
    assert _named("a=b/c") == ("a", "b/c")
    assert _named("work/x=1/encoder/") == ("encoder", "work/x=1/encoder/")
    assert _named("models:/mine@champion") == ("mine@champion", "models:/mine@champion")
