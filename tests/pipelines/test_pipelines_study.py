"""A study from file to report: cells by fingerprint, resumed, shared, failed; rebuilt from small files."""

import json
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient
from pipeline_builders import quiet_reporter
from study_builders import write_shipped_world, write_study, write_world
from study_runs import CellsHere

from pipelines.errors import InputError
from pipelines.study import run_study as run_study_module
from pipelines.study.run_study import run_study, study_folder
from pipelines.study.study_file import is_study, load_study
from pipelines.study.study_report_files import write_study_report

CONFIGS = Path(__file__).parents[2] / "configs" / "studies"
SHIPPED = [path.stem for path in sorted(CONFIGS.glob("*.yaml")) if is_study(path) and path.stem != "common"]
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def ran(monkeypatch):
    runs = CellsHere()
    monkeypatch.setattr(run_study_module, "run_cells", runs)
    return runs.titles


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("study"))


def go(path, **options):
    reporter, written = quiet_reporter()
    study = load_study(path)
    report = run_study(study, size="", reporter=reporter, **options)
    return report, study_folder(study, "").local_path, written.getvalue()


@pytest.fixture(scope="module")
def finished(world):
    """On Ray: what all the tests look at."""
    return go(write_study(world))


def test_a_study_runs_on_ray_and_reports_every_setting_with_its_spread(finished):
    report, folder, told = finished
    assert "study: 0 cells are there, 3 to run" in told
    assert "3/3 cells: " in told
    assert report.table.settings == ("tsdae", "bm25")
    cell = report.table.cells["tsdae", "pairs"]
    assert (cell.num_seeds, report.table.cells["bm25", "pairs"].num_seeds) == (2, 1)
    assert cell.std is not None
    assert report.table.cells["bm25", "rerank"].p_value is not None
    assert report.table.cells["bm25", "pairs"].published == 0.5
    content = json.loads((folder / "report.json").read_text())
    by_seed = {(cell["setting"], cell["column"]): cell["by_seed"] for cell in content["cells"]}
    assert set(by_seed["tsdae", "mean"]) == {"0", "1"}
    mean = sum(by_seed["tsdae", "mean"].values()) / 2
    assert mean == pytest.approx((cell.mean + report.table.cells["tsdae", "rerank"].mean) / 2)
    assert {curve.section for curve in report.curves} == {"Scores by steps"}
    assert [x for x, _ in report.curves[0].points] == [0, 3]
    page = (folder / "report.html").read_text()
    assert "TSDAE is better than BM25" in page
    assert "http" not in page.partition("</style>")[2]
    assert r"\begin{tabular}{lrrr}" in (folder / "report.tex").read_text()
    assert "| tsdae (baseline) |" in (folder / "report.md").read_text()


def test_every_cell_is_a_run_below_the_one_of_the_study(finished, world):
    client = MlflowClient(f"sqlite:///{world / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("tsdae").experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.run_name for run in parents] == ["study-tiny"]
    (parent,) = parents
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert len(children) == 3  # equal cells of two domains are one
    trained = next(run for run in children if run.info.run_name == "tsdae, pairs, seed 1")
    assert trained.data.params["train.tsdae.noise.ratio"] == "0.6"
    assert "train.mlm.mask_prob" not in trained.data.params
    steps = [point.step for point in client.get_metric_history(trained.info.run_id, "pairs.ap")]
    assert steps == [0, 3, 4]
    assert "report.html" in {Path(f.path).name for f in client.list_artifacts(parent.info.run_id, "report")}


def test_the_tables_are_rebuilt_from_the_small_files_alone(finished, tmp_path, monkeypatch):
    report, folder, _ = finished
    for name in ("study.json", "raw", "comparisons.json"):
        source = folder / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    again, names = write_study_report(study_folder_of(tmp_path))
    assert again == report
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    (tmp_path / "comparisons.json").unlink()
    for place in (tmp_path / "raw").glob("*.parquet"):
        place.unlink()
    poorer, _ = write_study_report(study_folder_of(tmp_path))
    assert poorer.table.cells["bm25", "pairs"].p_value is None
    assert any("4 comparisons have no p-value" in note for note in poorer.notes)


def study_folder_of(path):
    from pipelines.storage import Location

    return Location.parse(path)


def test_cells_that_are_there_are_not_run_again_in_any_study(finished, world, ran):
    report, _, _ = finished
    again, _, told = go(world / "study.yaml")
    assert (ran, again.table) == ([], report.table)
    assert "study: 3 cells are there, 0 to run" in told
    other = write_study(
        world,
        "other.yaml",
        name="other",
        # The same cells by another name, and one that is new; an idle setting changes nothing.
        axes={"method": {"ours": {"train.mlm.mask_prob": 0.3}, "weak": {"train.tsdae.noise.ratio": 0.1}}},
        seeds=[1],
        claims=[],
    )
    go(other)
    assert ran == ["weak, pairs, seed 1"]


def test_a_killed_cell_goes_on_from_its_checkpoint_and_ends_the_same(finished, world, ran, monkeypatch):
    report, folder, _ = finished
    raw = json.loads((folder / "study.json").read_text())
    key = next(cell["key"] for cell in raw["cells"] if (cell["setting"], cell["seed"]) == ("tsdae", 0))
    shutil.rmtree(world / "work/cells" / key)
    moved = write_study(world, "killed.yaml", name="killed", domains=one_domain(), seeds=[0])
    seen = []
    from pipelines.study import run_cell as run_cell_module

    real = run_cell_module.train_here

    def watched(training, **options):
        look = options["after_step"]

        def after(done, encoder):
            seen.append(done)
            if seen == [0, 1, 2, 3]:
                raise KeyboardInterrupt
            look(done, encoder)

        return real(training, **options | {"after_step": after})

    monkeypatch.setattr(run_cell_module, "train_here", watched)
    with pytest.raises(KeyboardInterrupt):
        go(moved)
    again, _, _ = go(moved)
    assert seen == [0, 1, 2, 3, 3, 4]  # checkpoints every two steps: step 3 is done again
    cell = report.table.values["tsdae", "pairs"]
    assert again.table.values["tsdae", "pairs"] == {0: cell[0]}
    assert not list((world / "work/cells").glob("*/training"))


def test_a_killed_worker_is_replaced_and_its_cell_goes_on(world):
    """Ray starts the task again, which finds the checkpoint; nobody has to run the study again."""
    train = {"method": {"long": {"train.num_steps": 150, "train.checkpoint_every": 10}}}
    path = write_study(
        world,
        "lost.yaml",
        name="lost",
        axes=train,
        domains=one_domain(),
        seeds=[0],
        claims=[],
        score_steps=[],
    )
    killed = []

    def kill():
        while not killed:
            newest = next((world / "work/cells").glob("*/training/train/newest.json"), None)
            for process in psutil.Process().children(recursive=True):
                if newest is not None and "ray::_run" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(json.loads(newest.read_text())["name"])
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    report, folder, _ = go(path)
    assert killed, "the cell ended before anything could be killed"
    assert killed[0] < "checkpoint_step_0000000150"
    assert report.table.cells["long", "pairs"].num_seeds == 1
    (raw,) = [json.loads(place.read_text()) for place in (folder / "raw").glob("*.json")]
    assert [step for step, _ in raw["made"]["losses"]] == [100, 150]


def one_domain():
    return {"pairs": {"corpus": "${data}/corpus.txt", "tasks": ["pairs"]}}


def test_a_cell_that_fails_is_named_and_the_others_are_reported(finished, world, ran, monkeypatch):
    bad = write_study(
        world,
        "bad.yaml",
        name="bad",
        axes={"method": {"tsdae": {}, "none": {"model.start": str(world / "absent-model")}}},
        domains=one_domain(),
        seeds=[0],
        claims=[],
    )
    with pytest.raises(InputError, match=r"1 cells failed.*none, pairs, seed 0: cannot load model.start"):
        go(bad)
    content = json.loads((world / "work/bad/default/report.json").read_text())
    assert {cell["setting"] for cell in content["cells"]} == {"tsdae"}


def test_rates_are_chosen_on_development_data_and_only_the_chosen_one_is_tested(finished, world, ran):
    """The chosen cell of the first seed is there already, and only scored on other tasks."""
    domains = {"pairs": one_domain()["pairs"] | {"dev": ["rerank"]}}
    path = write_study(
        world,
        "tuned.yaml",
        name="tuned",
        domains=domains,
        tune={"values": [1e-3, 1e-9]},
        score_steps=[],
        claims=[{"text": "best", "better": "tsdae", "than": "*"}],
    )
    report, folder, told = go(path)
    study = json.loads((folder / "study.json").read_text())
    (tuning,) = study["tunings"]
    scores = [trial["score"] for trial in tuning["trials"]]
    assert tuning["chosen"] == ("0.001", "1e-09")[int(scores[1] > scores[0])]
    assert ran[:2] == ["tsdae, lr 0.001, pairs, seed 0", "tsdae, lr 1e-09, pairs, seed 0"]
    assert set(ran[2:]) == {f"tsdae, pairs, seed {seed}" for seed in (0, 1)}
    raw = {
        trial["value"]: json.loads((folder / f"raw/{trial['key']}.json").read_text())["tasks"]
        for trial in tuning["trials"]
    }
    assert {value: set(tasks) for value, tasks in raw.items()} == {
        value: {"rerank", "pairs"} if value == tuning["chosen"] else {"rerank"} for value in raw
    }
    assert report.choices[0].cells[:3] == ("tsdae", "pairs", "rerank")
    for name in ("report.md", "report.html"):
        assert "Chosen on development data" in (folder / name).read_text()
    assert "2 trainings for development data" in told
    assert {cell["setting"] for cell in study["cells"]} == {"tsdae", "bm25"}
    ran.clear()
    again, _, _ = go(path)
    assert (ran, again) == ([], report)


def test_a_value_that_cannot_be_trained_with_is_told_and_not_chosen(finished, world, ran):
    path = write_study(
        world,
        "half.yaml",
        name="half",
        domains={"pairs": one_domain()["pairs"] | {"dev": ["rerank"]}},
        axes={"method": {"tsdae": {}}},
        tune={"key": "model.start", "values": [str(world / "absent-model"), "scratch"]},
        seeds=[0],
        score_steps=[],
        claims=[],
    )
    report, _, told = go(path)
    assert "FAILED: cannot load model.start" in told
    assert report.choices[0].chosen == "scratch"
    assert [score is None for _, score in report.choices[0].tried] == [True, False]
    assert report.table.cells["tsdae", "pairs"].num_seeds == 1


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    return write_shipped_world(tmp_path_factory.mktemp("shipped"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_study_runs_at_toy_size(shipped, ran, name):
    overrides = [f"workspace={shipped / 'work'}", f"variables.data={shipped}"]
    overrides.append(f"base.tracking.uri=sqlite:///{shipped}/mlflow.db")
    study = load_study(CONFIGS / f"{name}.yaml", overrides, size="toy")
    reporter, _ = quiet_reporter()
    report = run_study(study, size="toy", reporter=reporter)
    assert ran
    assert {setting for setting, _ in report.table.cells} == set(report.table.settings)
    assert len(report.claims) == len(study.claims)
    assert bool(report.choices) == (study.tune is not None)
    if study.search is not None:
        assert sum("labelled rows" in note for note in report.notes) == len(study.domains)
        assert {curve.section for curve in report.curves} <= {"Labelled rows"}
