"""The printed plan, and how files of vectors are grouped; no cluster needed."""

import pytest
from typer.testing import CliRunner

from indexing.index_config import IndexConfig
from indexing.plan import plan_index
from pipelines.cli.main import app
from pipelines.index_layout import Source, group_sources, way_of_merging
from pipelines.storage import Location


def run(*arguments):
    return CliRunner().invoke(app, ["index", *arguments])


def test_the_plan_of_a_hypothetical_corpus_is_printed_with_reasons_and_nothing_is_built():
    done = run("--plan", "--rows", "1e8", "--dim", "384", "index.memory_budget=16GiB")
    assert done.exit_code == 0, done.output
    for part in (
        "100,000,000 of 384 numbers",
        "IVF32768_HNSW32,PQ192x4fs,Refine(SQfp16)",
        "1,638,400 vectors",
        "10.4 GiB (112 bytes a row)",
        "56.8 MiB that all rows share",
        "a file for each group, searched together",
        "- 112 bytes a row, within the budget of 16 GiB",
        "on disk",
    ):
        assert part in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "--rows", "1e8"], "give --rows and --dim"),
        (["--plan", "--rows", "ten", "--dim", "3"], "--rows must be a whole number"),
        (["--plan", "--rows", "1.5", "--dim", "3"], "--rows must be a whole number"),
        ([], "give a CONFIG"),
        (["--plan", "--rows", "1e9", "--dim", "384", "index.memory_budget=1GiB"], "no index type fits"),
        (
            ["--plan", "--rows", "1e6", "--dim", "384", "index.factory=IVF4096,PQ100x4fs"],
            "FAISS cannot build index.factory 'IVF4096,PQ100x4fs' for 384 dimensions",
        ),
    ],
)
def test_what_a_plan_lacks_is_said(arguments, message):
    done = run(*arguments)
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)


def sources(*sizes):
    place = Location.parse("/nowhere")
    return [Source(folder=place, name=f"p{i}", num_rows=n, digest=str(i)) for i, n in enumerate(sizes)]


def grouped(sizes, **settings):
    config = IndexConfig(**settings)
    plan = plan_index(sum(sizes), 64, config)
    return [[one.num_rows for one in group] for group in group_sources(sources(*sizes), plan, config)]


def test_groups_are_what_one_task_can_hold():
    assert grouped([300, 300, 300], factory="IVF8,SQ8") == [[300, 300, 300]]
    assert grouped([300, 300, 300], factory="IVF8,SQ8", build_memory="200KB") == [[300, 300], [300]]
    assert grouped([300, 900, 300], factory="IVF8,SQ8", build_memory="100KB") == [[300], [900], [300]]
    assert grouped([600_000, 600_000], factory="IVF8,SQ8") == [[600_000], [600_000]]


def test_a_graph_is_one_group_unless_it_is_sharded():
    assert grouped([600_000, 600_000], factory="HNSW8,SQ8") == [[600_000, 600_000]]
    assert grouped([600_000, 600_000], factory="HNSW8,SQ8", layout="sharded") == [[600_000], [600_000]]


@pytest.mark.parametrize("factory", ["HNSW8,SQ8", "IVF8,PQ32x4fs,Refine(SQ8)", "Flat"])
def test_a_merged_index_larger_than_the_build_memory_is_refused_before_anything_is_built(factory):
    with pytest.raises(ValueError, match=r"index\.build_memory is 50KB: .*index\.layout=auto or sharded"):
        grouped([300, 300, 300], factory=factory, build_memory="50KB", layout="merged")
    assert len(grouped([300, 300, 300], factory=factory, build_memory="50KB")) == 3
    assert len(grouped([300, 300, 300], factory=factory, build_memory="50KB", layout="sharded")) == 3


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"factory": "IVF8,SQ8"}, "in memory"),
        ({"factory": "IVF8,SQ8", "build_memory": "100KB"}, "on disk"),
        ({"factory": "IVF8,PQ16np", "build_memory": "30KB"}, "on disk"),
        ({"factory": "IVF8,PQ32x4fs", "build_memory": "30KB"}, "shards"),
        ({"factory": "IVF8,PQ32x4fs,Refine(SQ8)", "build_memory": "100KB"}, "shards"),
        ({"factory": "HNSW8,SQ8"}, "in memory"),
        ({"factory": "HNSW8,SQ8", "build_memory": "100KB"}, "shards"),
        ({"factory": "IVF8,SQ8", "layout": "sharded"}, "shards"),
    ],
)
def test_groups_are_merged_in_memory_where_twice_the_index_fits_else_on_disk_else_not(settings, way):
    config = IndexConfig(**settings)
    assert way_of_merging(plan_index(900, 64, config), config) == way
