"""Which cells are one: settings that change weights or scores split them, others do not."""

import pytest
from study_builders import write_study, write_world

from pipelines.errors import InputError
from pipelines.study.grid import cells_of
from pipelines.study.identity import Prepared, cell_key
from pipelines.study.study_file import load_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("identity"))


def key_of(folder, num_rows=60, **train):
    axes = {"method": {"one": {f"train.{name}": value for name, value in train.items()}}}
    study = load_study(write_study(folder, axes=axes, claims=[], seeds=[0], tasks=tasks()))
    cell = cells_of(study)[0]
    return cell_key(cell, {cell.config.corpus.input: Prepared("digest", num_rows)})


def tasks(**published):
    return {
        "pairs": {"kind": "pairs", "folder": "${data}/pairs.tsv", "published": published},
        "rerank": {"kind": "rerank", "folder": "${data}/rerank.tsv"},
    }


@pytest.mark.parametrize("name", ["log_every", "validate_every", "checkpoint_every", "threads_per_worker"])
def test_what_changes_neither_weights_nor_scores_makes_no_new_cell(folder, name):
    assert key_of(folder, **{name: 3}) == key_of(folder)


def test_validation_counts_where_it_chooses_the_encoder(folder):
    for chooses in ({"keep": "best"}, {"early_stopping.patience": 2}):
        assert key_of(folder, validate_every=3, **chooses) != key_of(folder, **chooses)
    assert key_of(folder, validation_rows=9) != key_of(folder)


def test_more_rows_than_there_are_is_all_of_them(folder):
    assert key_of(folder, max_rows=60) == key_of(folder, max_rows=999) == key_of(folder)
    assert key_of(folder, max_rows=59) != key_of(folder)
    assert key_of(folder, num_rows=2000, max_rows=60) != key_of(folder, num_rows=2000)


def test_a_published_figure_of_no_setting_is_an_error_that_names_it(folder):
    study = load_study(write_study(folder, tasks=tasks(bm52=50.0)))
    with pytest.raises(InputError, match=r"no setting 'bm52'.*bm25"):
        cells_of(study)
