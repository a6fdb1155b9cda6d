"""The search on development data: which cells it asks for, what it chooses, and for whom."""

import pytest
from study_builders import write_study, write_world

from pipelines.errors import InputError
from pipelines.study.grid import cells_of
from pipelines.study.study_file import load_study
from pipelines.study.tuning import chosen_of, tunings_of

METHODS = {
    "tsdae": {},
    "mlm": {"train.objective": "mlm"},
    "start": {"system.kind": "start"},
    "bm25": {"system.kind": "bm25"},
    "phases": {
        "phases": [
            {"name": "one", "train": {"objective": "mlm"}},
            {"name": "two", "train": {"optim": {"lr": 0.5}}},
        ]
    },
    "fixed": {"phases": [{"name": "one", "train": {"optim": {"lr": 0.5}}}]},
}
DOMAINS = {
    "pairs": {"corpus": "${data}/corpus.txt", "tasks": ["pairs"], "dev": ["rerank"]},
    "other": {"corpus": "${data}/corpus.txt", "tasks": ["rerank"], "dev": ["pairs", "rerank"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("tuning"))


def study_of(folder, tune, **changes):
    options = {"axes": {"method": METHODS}, "domains": DOMAINS, "claims": [], "tune": tune} | changes
    return load_study(write_study(folder, **options))


def tell(tuning, *scores):
    return tuning.told([(f"key-{i}", score) for i, score in enumerate(scores)])


def test_every_setting_that_the_value_changes_is_tried_alike_in_every_domain(folder):
    tunings = tunings_of(study_of(folder, {"values": [0.1, 0.2]}))
    settings = ("tsdae", "mlm", "phases")
    assert [(t.setting, t.domain) for t in tunings] == [(s, d) for s in settings for d in DOMAINS]
    cells = [trial.cell for tuning in tunings for trial in tuning.trials]
    assert {cell.seed for cell in cells} == {0}
    assert {cell.score_steps for cell in cells} == {()}
    assert [cell.tasks for cell in cells[:4]] == [("rerank",)] * 2 + [("pairs", "rerank")] * 2
    assert [trial.cell.config.train.optim.lr for trial in tunings[0].trials] == [0.1, 0.2]
    assert [t.cell.setting.label for t in tunings[0].trials] == ["tsdae, lr 0.1", "tsdae, lr 0.2"]
    rates = [[phase.train.optim.lr for phase in t.cell.config.phases] for t in tunings[4].trials]
    assert rates == [[0.1, 0.5], [0.2, 0.5]]


def test_the_best_is_chosen_the_first_of_equals_and_nothing_where_all_failed(folder):
    study = study_of(folder, {"values": [0.1, 0.2, 0.3]})
    one, other, *others = tunings_of(study)
    assert tell(one, 0.5, 0.7, 0.7).chosen == 0.2
    assert tell(one, None, 0.0, None).chosen == 0.2
    assert tell(one, None, None, None).chosen is None
    told = [tell(one, 0.5, 0.7, 0.6), tell(other, 0.9, 0.7, 0.6)]
    told += [tell(tuning, None, None, None) for tuning in others]
    chosen = chosen_of(study, told)
    assert chosen == {
        ("tsdae", "pairs"): [("train.optim.lr", 0.2)],
        ("tsdae", "other"): [("train.optim.lr", 0.1)],
    }
    rates = {
        (cell.setting.label, cell.domain, cell.seed): cell.config.train.optim.lr
        for cell in cells_of(study, chosen)
        if cell.setting.label in ("tsdae", "mlm")
    }
    assert {rates["tsdae", "pairs", seed] for seed in (0, 1)} == {0.2}
    assert {rates["tsdae", "other", seed] for seed in (0, 1)} == {0.1}
    assert {rates["mlm", "pairs", seed] for seed in (0, 1)} == {1e-3}


def test_one_setting_may_search_for_all_with_a_recipe_of_its_own(folder):
    tune = {"values": [0.1, 0.2], "share": "mlm", "set": {"train.num_steps": 2}}
    study = study_of(folder, tune, score_steps=[1])
    tunings = tunings_of(study)
    assert [(tuning.setting, tuning.domain) for tuning in tunings] == [("mlm", "pairs"), ("mlm", "other")]
    assert {trial.cell.config.train.num_steps for trial in tunings[0].trials} == {2}
    chosen = chosen_of(study, [tell(tuning, 0.1, 0.2) for tuning in tunings])
    tested = [cell for cell in cells_of(study, chosen) if cell.setting.label == "tsdae"]
    assert {(cell.config.train.optim.lr, cell.config.train.num_steps) for cell in tested} == {(0.2, 4)}
    assert {cell.score_steps for cell in tested} == {(1,)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domains": {"pairs": {"corpus": "c", "tasks": ["pairs"]}}}, "domain pairs has no dev task"),
        ({"domains": {"pairs": DOMAINS["pairs"] | {"dev": ["pears"]}}}, "domain pairs: no task 'pears'"),
        ({"tune": {"values": [0.1], "share": "tsdea"}}, "no setting 'tsdea'.*tsdae"),
        ({"tune": {"values": []}}, "at least one value"),
        ({"tune": {"values": [0.1, 0.1]}}, "must differ"),
        ({"published_mean": {"tsdea": 1.0}}, "no setting 'tsdea'"),
        ({"claims": [{"text": "t", "better": "tsdae"}]}, "give better and than"),
        ({"claims": [{"text": "t", "better": "tsdae", "than": "mlm", "unpredicted_by": "pairs"}]}, "none of"),
        ({"claims": [{"text": "t", "unpredicted_by": "pears"}]}, "no task 'pears'"),
        ({"claims": [{"text": "t", "unpredicted_by": "pairs", "rank_below": 0}]}, "above 0"),
    ],
)
def test_what_cannot_be_searched_or_claimed_is_an_error(folder, changes, message):
    with pytest.raises(InputError, match=message):
        cells_of(study_of(folder, **{"tune": {"values": [0.1]}} | changes))
